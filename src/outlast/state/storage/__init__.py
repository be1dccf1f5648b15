"""Where checkpoints lie: objects by key under one URL, on a disk, in an object store or in HDFS.

`seam` says what a storage can do; there are three: `files`, `objects` (S3, GCS, Azure) and `hdfs`. `patience`
wraps any of them with retries, backoff and deadlines, and `opening` makes one from a URL. Nothing here knows
what a checkpoint is, and nothing here imports torch.
"""
