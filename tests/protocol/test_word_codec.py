"""Every word comes out of a frame as it went in, and what cannot be read is its sender's fault."""

from __future__ import annotations

from typing import get_args

import pytest

from outlast.errors import ProtocolError
from outlast.protocol import codec
from outlast.protocol.header import Header
from outlast.protocol.kinds import NOTE_BYTES, Kind, NodeNote, PartNote, encode
from outlast.protocol.saving import SaveBody, Saved, Stripe, Unable
from outlast.protocol.step_words import (
    Body,
    Check,
    Difference,
    Ending,
    Fork,
    Gone,
    Handed,
    Holding,
    Part,
    Sum,
    Surveyed,
    Switched,
    Trial,
    Want,
    Whole,
)
from outlast.protocol.views import Member, View

CHECK = Check(
    step=40,
    digest=b"d" * 32,
    verified=30,
    due=True,
    checksum=1 << 63,
    buffers=b"b",
    entries=b"e" * 9,
    buffer_entries=b"f",
    before=Difference(20, (1, 2), b"names", b"plain"),
)
NOTE = PartNote(
    nodes=(NodeNote(1, 2, 1.0, 2.0, b"\x01", {0: b"i"}),),
    pending=9,
    closing=True,
    save=2,
    check=CHECK,
    asked=("best",),
    keeps=(3, 5),
)
MEMBERS = (Member(0, 1, "10.0.0.1:7"), Member(3, 2))
MORE = View(number=9, lineage=2, members=MEMBERS, shards=(0, 3), slices=(3, 0), planned_since=4, cause="why")

WORDS: list[tuple[Body | SaveBody, bytes]] = [
    (Holding(-1), b""),
    (Holding(41, running=True, verified=30, fork=Fork(3, 20)), b""),
    (Want(7), b""),
    *((Part(41, 9, True, trial, CHECK), encode(NOTE)) for trial in Trial),
    (Part(0), encode(PartNote())),
    (Ending(41, CHECK), b""),
    *((Surveyed(41, trial), b"found") for trial in Trial),
    *((Sum(41, trial), b"norms") for trial in Trial),
    (Sum(1), b""),
    (Gone(7), b""),
    (Switched(MORE), b""),
    (Stripe(41, 2, b"where"), b""),
    (Stripe(1, 1), b""),
    (Unable(41, "the disk is full: 100 %"), b""),
    (Unable(41, "", again=True), b""),
    (Saved(41), b""),
    (Saved(41, later=3), b""),
]


def sent(body: Body | SaveBody, extra: bytes = b"") -> tuple[Header, memoryview]:
    """A word as it comes out of a connection, in a life and a view."""
    header, payload = codec.write(body, extra)
    header = header._replace(incarnation=3, view=8).sized(len(payload))
    return Header.unpack(header.pack()), memoryview(payload)


@pytest.mark.parametrize(("body", "extra"), WORDS, ids=lambda value: repr(value)[:40])
def test_a_word_is_read_as_it_was_said(body: Body | SaveBody, extra: bytes) -> None:
    header, payload = sent(body, extra)
    assert (header.incarnation, header.view) == (3, 8)
    heard = codec.read(header, payload)
    assert heard is not None
    assert heard.body == body and type(heard.body) is type(body)
    if isinstance(body, Part):
        assert heard.extra == (NOTE if body.step else PartNote())
    elif isinstance(body, Surveyed | Sum):
        assert heard.extra == extra
    else:
        assert heard.extra is None


def test_there_is_no_other_word() -> None:
    """Whole and Handed are said by the record that they are about."""
    said = {type(body) for body, _ in WORDS}
    assert said == set(get_args(Body) + get_args(SaveBody)) - {Whole, Handed}


@pytest.mark.parametrize("body", [Whole(7), Handed(7)])
def test_a_record_is_no_word(body: Body) -> None:
    with pytest.raises(AssertionError, match="said by what carries it"):
        codec.write(body)


def test_only_a_question_moves_others() -> None:
    """One who answers is in the view in band, and nobody has to follow it."""
    moving = []
    for body, extra in WORDS:
        heard = codec.read(*sent(body, extra))
        assert heard is not None
        moving += [body] if heard.moves else []
    assert moving == [Holding(-1)]


@pytest.mark.parametrize("kind", sorted(set(Kind) - {codec.write(*word).header.kind for word in WORDS}))
def test_what_is_no_word_is_left_to_others(kind: Kind) -> None:
    assert codec.read(Header(kind, step=7), memoryview(b"\xc1")) is None


@pytest.mark.parametrize("kind", [Kind.PART, Kind.SURVEY, Kind.SUM])
def test_a_trial_that_there_is_not_is_its_senders_fault(kind: Kind) -> None:
    payload = memoryview(encode(PartNote()))
    assert codec.read(Header(kind, flags=max(Trial), step=7), payload) is not None
    with pytest.raises(ProtocolError, match=f"trial {max(Trial) + 1}, which there is not"):
        codec.read(Header(kind, flags=max(Trial) + 1, step=7), payload)


@pytest.mark.parametrize("kind", [Kind.PART, Kind.HOLDING, Kind.ENDING, Kind.SWITCHED, Kind.UNABLE])
@pytest.mark.parametrize(
    "payload", [None, b"", b"\xc1", b"\x93", b"\xa1\xff", b"\x91" * 5000, encode("é")[:-1]]
)
def test_a_payload_that_cannot_be_read_is_its_senders_fault(kind: Kind, payload: bytes | None) -> None:
    with pytest.raises(ProtocolError, match="a note of a peer can not be read"):
        codec.read(Header(kind, step=7), None if payload is None else memoryview(payload))


def test_a_frame_that_is_no_bulk_has_an_end() -> None:
    assert codec.room(Header(Kind.PART, size=17)).nbytes == 17
    with pytest.raises(ProtocolError, match=f"announces {NOTE_BYTES + 1} bytes"):
        codec.room(Header(Kind.PART, size=NOTE_BYTES + 1))
