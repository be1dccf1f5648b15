"""Where checkpoints lie: objects by key under one URL, on a disk, in an object store or in HDFS.

`seam` says what a storage can do, and `keys` what its objects can be called. There are three storages:
`files` (with `drafts`, what is being written), `objects` (S3, GCS, Azure; with `clouds`, their clients, and
`refusals`, what their errors mean) and `hdfs`. `patience` wraps any of them with retries, backoff and
deadlines (with `giving_up`, how a call learns that nobody waits for it any more), and `opening` makes one
from a URL. Nothing here knows what a checkpoint is, and nothing here imports torch.
"""
