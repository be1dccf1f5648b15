"""What travels on the mesh: a header of 48 bytes, the bytes that it announces, and a seal of 8.

The header is fixed and flat, because it is read and written for every piece of every gradient of every step:
no field has to be searched for, and a receiver knows from the header alone where in its memory the payload
belongs. What the fields mean is the business of those who send them; the transport itself looks at three:
`kind` (one value is its own), `incarnation` (a frame of another life never counts), `size` (where it ends).

The seal is the number of the frame on its connection, spread over its bits. TCP keeps bytes as they are; but
should some be lost or added on the way, everything behind them is read from the wrong place, and a payload is
full of wrong numbers before the next header makes no sense. With the seal that is known before the frame
counts, and so is the loss of a whole one.

The first frame in each direction is a *hello*. It has no payload and says who speaks, in which life, and
which life of the other it means to speak to. The same header serves, so there is one format and not two.
"""

import struct
from typing import NamedTuple, Self

from outlast.errors import ProtocolError

_LAYOUT = struct.Struct("<BBHIQQIIQQ")
HEADER_BYTES = _LAYOUT.size
MAX_PAYLOAD_BYTES = 1 << 30

HELLO = 0
"""The kind that belongs to the transport; every other is free to use."""

# Where a field has no use in a hello, it tells a hello from bytes that mean something else.
_HELLO_MARK = int.from_bytes(b"outlast\0", "little")


_SEAL = struct.Struct("<Q")
SEAL_BYTES = _SEAL.size
_SPREAD = 0x9E3779B97F4A7C15
_ALL_BITS = 0xFFFFFFFFFFFFFFFF


def seal(number: int) -> bytes:
    """What stands behind the frame of that number."""
    return _SEAL.pack(number * _SPREAD & _ALL_BITS)


def is_sealed(data: memoryview | bytes, at: int, number: int) -> bool:
    """Whether a frame that ends there is the one of that number."""
    found: int
    (found,) = _SEAL.unpack_from(data, at)
    return found == number * _SPREAD & _ALL_BITS


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


class Hello(NamedTuple):
    """Who speaks, in which life, and to which life of the other."""

    replica: int
    incarnation: int
    expected: int

    def pack(self) -> bytes:
        return Header(
            HELLO, incarnation=self.incarnation, view=_HELLO_MARK, lo=self.replica, hi=self.expected
        ).pack()

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        header = Header.unpack(data)
        hello = cls(header.lo, header.incarnation, header.hi)
        if hello.pack() != data:
            raise ProtocolError("the peer did not begin with a hello")
        return hello
