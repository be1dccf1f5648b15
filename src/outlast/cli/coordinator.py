"""`outlast coordinator`."""

from outlast.coordinator.__main__ import main

__all__ = ["main"]
