import pytest

from outlast.errors import ProtocolError
from outlast.mesh.frames import SEAL_BYTES, Hello, is_sealed, seal
from outlast.protocol.header import HEADER_BYTES, Header

FULL = Header(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)


def test_a_header_has_48_bytes_in_a_fixed_order() -> None:
    packed = FULL.pack()
    assert HEADER_BYTES == len(packed) == 48
    assert [packed[at : at + size].hex() for at, size in ((0, 1), (1, 1), (2, 2), (4, 4))] == [
        "01",
        "02",
        "0300",
        "04000000",
    ]
    assert (
        packed[8:].hex(" ", -8)
        == "0500000000000000 0600000000000000 0700000008000000 0900000000000000 0a00000000000000"
    )


def test_a_header_comes_back_as_it_went() -> None:
    widest = Header(255, 255, 2**16 - 1, 2**32 - 1, 2**64 - 1, 2**64 - 1, 2**32 - 1, 2**32 - 1, 2**64 - 1, 0)
    for header in (FULL, widest, Header(1)):
        assert Header.unpack(header.pack()) == header
        assert Header.unpack(memoryview(b"xyz" + header.pack()), 3) == header


def test_a_field_that_does_not_fit_is_the_senders_error() -> None:
    with pytest.raises(ValueError, match=r"bucket=65536.*does not fit"):
        Header(1, bucket=65536).pack()


def test_a_hello_comes_back_as_it_went_and_nothing_else_is_one() -> None:
    hello = Hello(replica=5, incarnation=3, expected=7)
    assert Hello.unpack(hello.pack()) == hello
    for other in (FULL.pack(), bytes(HEADER_BYTES), hello.pack()[:-1] + b"\1"):
        with pytest.raises(ProtocolError, match="hello"):
            Hello.unpack(other)


def test_a_seal_fits_one_frame_and_one_place() -> None:
    seals = [seal(number) for number in range(1000)]
    assert len(set(seals)) == 1000 and {len(one) for one in seals} == {SEAL_BYTES}
    stream = b"xyz" + seal(1 << 40) + seal((1 << 40) + 1)
    assert is_sealed(stream, 3, 1 << 40) and is_sealed(memoryview(stream), 11, (1 << 40) + 1)
    assert not is_sealed(stream, 3, (1 << 40) + 1) and not is_sealed(stream, 4, 1 << 40)


def test_a_header_can_be_given_another_size_and_nothing_else() -> None:
    assert FULL.sized(10) is FULL
    assert FULL.sized(77) == FULL._replace(size=77)
