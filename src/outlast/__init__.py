"""PyTorch training that outlasts its machines."""

from outlast.errors import OutlastError

__all__ = ["OutlastError"]
