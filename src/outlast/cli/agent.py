"""`outlast agent`."""

from outlast.agent.__main__ import main

__all__ = ["main"]
