"""What travels on the mesh: a header of 48 bytes, the bytes that it announces, and a seal of 8.

What the header says is in `protocol/header.py`.

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
from outlast.protocol.header import Header

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
