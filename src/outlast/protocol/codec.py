"""Words of the cores as frames, and back: the one place that knows how each of them is written.

A word is a header's `kind`, `step`, `flags` and `offset`, and a payload. What goes with a word beside what
the core says (contributions' notes with a PART, what a survey has found, norms with a SUM) is the business of
whoever reduces, and passes through here as bytes. Records and states are no words: they travel in pieces, as
`post.py` sends them.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from outlast.errors import ProtocolError
from outlast.protocol.header import Header
from outlast.protocol.kinds import (
    CHECK,
    HOLDING,
    NOTE_BYTES,
    PART,
    HoldingNote,
    Kind,
    PartNote,
    decode,
    encode,
)
from outlast.protocol.saving import SaveBody, Saved, Stripe, Unable
from outlast.protocol.step_words import (
    Body,
    Ending,
    Gone,
    Holding,
    Part,
    Sum,
    Surveyed,
    Switched,
    Trial,
    Want,
)
from outlast.protocol.views import View

_VIEW = msgspec.msgpack.Decoder(View)
_REASON = msgspec.msgpack.Decoder(str)


class Word(NamedTuple):
    """What is said, ready to be sent."""

    header: Header
    """Without the sender's life and view."""
    payload: bytes = b""


class Heard(NamedTuple):
    """What was said."""

    body: Body | SaveBody
    extra: PartNote | bytes | None = None
    """What came with it."""
    moves: bool = False
    """Its sender has adopted this view out of step, and everybody who knows the view should follow."""


def write(body: Body | SaveBody, extra: bytes = b"") -> Word:
    """A word as a frame; `extra` goes with a part, a survey or a sum."""
    match body:
        case Part():
            return Word(Header(Kind.PART, body.trial, step=body.step), extra)
        case Surveyed():
            return Word(Header(Kind.SURVEY, body.trial, step=body.step), extra)
        case Sum():
            return Word(Header(Kind.SUM, body.trial, step=body.step), extra)
        case Holding():
            # Blank is -1, and a header has no negative numbers.
            header = Header(Kind.HOLDING, int(body.running), step=body.newest + 1)
            return Word(header, encode(HoldingNote(body.verified, body.fork)))
        case Ending():
            return Word(Header(Kind.ENDING, step=body.step), encode(body.check))
        case Want():
            return Word(Header(Kind.WANT, step=body.step))
        case Gone():
            return Word(Header(Kind.GONE, step=body.step))
        case Switched():
            return Word(Header(Kind.SWITCHED), encode(body.view))
        case Stripe():
            return Word(Header(Kind.STRIPE, step=body.step, offset=body.lineage), body.payload)
        case Unable():
            return Word(Header(Kind.UNABLE, int(body.again), step=body.step), encode(body.reason))
        case Saved():
            return Word(Header(Kind.SAVED, step=body.step, offset=body.later))
        case _:
            raise AssertionError(f"{body} is said by what carries it")


def read(header: Header, payload: memoryview | None) -> Heard | None:
    """The word that a frame is; None if it is none. ProtocolError: it cannot be read."""
    step = header.step
    match header.kind:
        case Kind.PART:
            note = decode(PART, _bytes(payload))
            return Heard(Part(step, note.pending, note.closing, _trial(header), note.check), note)
        case Kind.SURVEY:
            return Heard(Surveyed(step, _trial(header)), _bytes(payload))
        case Kind.SUM:
            return Heard(Sum(step, _trial(header)), _bytes(payload))
        case Kind.HOLDING:
            more = decode(HOLDING, _bytes(payload))
            holding = Holding(step - 1, header.flags == 1, more.verified, more.fork)
            return Heard(holding, moves=not holding.running)
        case Kind.ENDING:
            return Heard(Ending(step, decode(CHECK, _bytes(payload))))
        case Kind.WANT:
            return Heard(Want(step))
        case Kind.GONE:
            return Heard(Gone(step))
        case Kind.SWITCHED:
            return Heard(Switched(decode(_VIEW, _bytes(payload))))
        case Kind.STRIPE:
            return Heard(Stripe(step, header.offset, _bytes(payload)))
        case Kind.UNABLE:
            return Heard(Unable(step, decode(_REASON, _bytes(payload)), again=bool(header.flags)))
        case Kind.SAVED:
            return Heard(Saved(step, header.offset))
    return None


def room(header: Header) -> memoryview:
    """Memory for an incoming frame that is no bulk."""
    if header.size > NOTE_BYTES:
        raise ProtocolError(f"a peer announces {header.size} bytes of kind {header.kind}")
    return memoryview(bytearray(header.size))


def _trial(header: Header) -> Trial:
    try:
        return Trial(header.flags)
    except ValueError:
        raise ProtocolError(f"a peer speaks of trial {header.flags}, which there is not") from None


def _bytes(payload: memoryview | None) -> bytes:
    return b"" if payload is None else bytes(payload)
