import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.errors import ProtocolError
from outlast.wire.framing import MAX_FRAME_BYTES, FrameDecoder, frame


def chunks_of(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(st.lists(st.binary(max_size=40)), st.lists(st.integers(min_value=0)))
def test_any_cutting_of_the_stream_gives_the_same_payloads(payloads: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(frame(payload) for payload in payloads)
    decoder = FrameDecoder()
    decoded = [payload for chunk in chunks_of(stream, cuts) for payload in decoder.feed(chunk)]
    assert decoded == payloads
    assert not decoder.mid_frame


@given(st.binary(max_size=200), st.lists(st.integers(min_value=0)))
def test_garbage_is_cut_anywhere_and_judged_the_same(garbage: bytes, cuts: list[int]) -> None:
    def outcome(chunks: list[bytes]) -> tuple[list[bytes], bool, bool]:
        decoder = FrameDecoder(max_bytes=16)
        decoded: list[bytes] = []
        try:
            for chunk in chunks:
                decoded += decoder.feed(chunk)
        except ProtocolError:
            return decoded, True, False
        return decoded, False, decoder.mid_frame

    whole, whole_refused, whole_mid = outcome([garbage])
    cut, cut_refused, cut_mid = outcome(chunks_of(garbage, cuts))
    assert (cut_refused, cut_mid) == (whole_refused, whole_mid)
    if not whole_refused:
        assert cut == whole


def test_an_over_long_frame_is_refused_at_its_header() -> None:
    decoder = FrameDecoder(max_bytes=8)
    assert decoder.feed(b"\x00\x00\x00") == []
    with pytest.raises(ProtocolError, match="9 bytes; the limit is 8"):
        decoder.feed(b"\x09" + b"x" * 1000)
    assert len(decoder._payload) == 0


def test_a_decoder_that_has_refused_stays_refused() -> None:
    decoder = FrameDecoder(max_bytes=8)
    with pytest.raises(ProtocolError):
        decoder.feed(b"\xff\xff\xff\xff")
    with pytest.raises(ProtocolError):
        decoder.feed(frame(b"fine"))


def test_the_limit_itself_is_allowed_and_one_more_is_not() -> None:
    assert FrameDecoder().feed(frame(b"x" * MAX_FRAME_BYTES)) == [b"x" * MAX_FRAME_BYTES]
    with pytest.raises(ValueError, match="over the limit"):
        frame(b"x" * (MAX_FRAME_BYTES + 1))


@pytest.mark.parametrize("part", [1, 4, 6])
def test_a_stream_that_ends_inside_a_frame_can_be_told(part: int) -> None:
    decoder = FrameDecoder()
    decoder.feed(frame(b"abc")[:part])
    assert decoder.mid_frame
