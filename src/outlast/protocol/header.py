"""The header of every frame between replicas: what it is, and where it belongs.

It is fixed and flat, because it is read and written for every piece of every gradient of every step: no field
has to be searched for, and a receiver knows from the header alone where in its memory the payload belongs.
What the fields mean is said in `kinds.py`; the transport looks at three: `kind` (one value is its own),
`incarnation` (a frame of another life never counts), `size` (where it ends).
"""

import struct
from typing import NamedTuple, Self

_LAYOUT = struct.Struct("<BBHIQQIIQQ")
HEADER_BYTES = _LAYOUT.size


class Header(NamedTuple):
    """Little-endian on the wire, in this order, without gaps."""

    kind: int
    """u8; what the frame is."""
    flags: int = 0
    """u8"""
    bucket: int = 0
    """u16"""
    incarnation: int = 0
    """u32; the life in which the sender sent it."""
    view: int = 0
    """u64"""
    step: int = 0
    """u64"""
    lo: int = 0
    """u32"""
    hi: int = 0
    """u32"""
    offset: int = 0
    """u64"""
    size: int = 0
    """u64; how many bytes of payload follow."""

    def pack(self) -> bytes:
        try:
            return _LAYOUT.pack(*self)
        except struct.error as error:
            raise ValueError(f"{self} does not fit the header of a frame: {error}") from error

    def sized(self, size: int) -> "Header":
        """The same, with so many bytes of payload."""
        return self if self.size == size else Header(*self[:-1], size)

    @classmethod
    def unpack(cls, data: memoryview | bytes, at: int = 0) -> Self:
        return cls(*_LAYOUT.unpack_from(data, at))
