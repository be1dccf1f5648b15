import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_peers import CODEC, Count, Say

from outlast.errors import ProtocolError
from outlast.wire.codec import Codec


class Untagged(msgspec.Struct):
    number: int


class Picky(msgspec.Struct, tag="picky"):
    number: int

    def __post_init__(self) -> None:
        {}[self.number]


@given(st.one_of(st.builds(Say, st.text()), st.builds(Count, st.integers(0, 2**63), st.binary())))
def test_a_message_survives_the_trip(message: Say | Count) -> None:
    assert CODEC.decode(CODEC.encode(message)) == message


@given(st.binary())
def test_garbage_is_a_protocol_error_and_nothing_else(garbage: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert isinstance(CODEC.decode(garbage), Say | Count)


@given(st.binary(), st.integers(min_value=0))
def test_a_damaged_message_is_a_message_or_a_protocol_error(noise: bytes, at: int) -> None:
    good = CODEC.encode(Count(7, b"blob"))
    at %= len(good)
    with contextlib.suppress(ProtocolError):
        assert isinstance(CODEC.decode(good[:at] + noise + good[at + 1 :]), Say | Count)


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="empty"),
        pytest.param(msgspec.msgpack.encode({"type": "shout", "text": "x"}), id="unknown tag"),
        pytest.param(msgspec.msgpack.encode({"text": "x"}), id="no tag"),
        pytest.param(msgspec.msgpack.encode({"type": "count", "number": "7"}), id="wrong type"),
        pytest.param(msgspec.msgpack.encode({"type": "count"}), id="field missing"),
        pytest.param(CODEC.encode(Say("x")) + b"\x00", id="trailing garbage"),
        pytest.param(CODEC.encode(Say("x"))[:-1], id="cut short"),
        pytest.param(b"\x82\xa4type\xa3say\xa1z" + b"\x91" * 500_000 + b"\x01", id="deep nesting"),
        pytest.param(b"\x82\xa4type\xa3say\xa4text\xa2\xff\xfe", id="broken UTF-8"),
        pytest.param(b"\x82\xa4type\xa3say\xa4text\xdb\xff\xff\xff\xff", id="a string of 4 GB"),
        pytest.param(b"\xdd\xff\xff\xff\xff", id="a list of 4 billion"),
    ],
)
def test_malformed_payloads(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="malformed message"):
        CODEC.decode(payload)


def test_a_peer_can_not_forge_log_lines_through_the_reason() -> None:
    with pytest.raises(ProtocolError) as caught:
        CODEC.decode(msgspec.msgpack.encode({"type": "x\nERROR all is lost\x1b[31m" + "!" * 9999}))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200


def test_checks_of_a_message_itself_are_protocol_errors_too() -> None:
    with pytest.raises(ProtocolError):
        Codec((Picky,)).decode(msgspec.msgpack.encode({"type": "picky", "number": 1}))


def test_a_message_of_another_family_is_the_callers_mistake() -> None:
    with pytest.raises(TypeError, match="Count is not one of"):
        Codec[msgspec.Struct]((Say,)).encode(Count(1))
    with pytest.raises(TypeError, match="has no tag"):
        Codec((Untagged,))
