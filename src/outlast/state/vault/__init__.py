"""Checkpoints in a storage: claims, manifests and chunks, as docs/decisions/0011 lays them out."""
