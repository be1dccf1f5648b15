"""What replicas say to each other on the mesh, and how small things are written.

Bulk (gradients, records, state) travels as raw bytes behind a header that says where it belongs. Everything
else is a typed struct in MessagePack, and a payload that does not decode costs its sender the connection.

    SCATTER    (view, step, bucket, node)   a contribution, to the owner of the slice; in a hearing, a second
                                            opinion or an audited part: `offset` is the place of the slice
    RESULT     (view, step, bucket)         the owner's reduced slice, to every member
    PART       (view, step)  PartNote       all my contributions are with you, and what I know of my state
    SURVEY     (view, step)  float64        what the rule has to know of my slice, to every member
    SUM        (view, step)  float64        all my results are with you, and these are contributions' norms;
                                            in a hearing, a FindingsNote
    HOLDING    (view)        step + 1, note my newest record; flag 1: I train in this view already
    ENDING     (view, step)  Check          I have come to the end of the loop of steps
    WANT, GONE (view, step)                 see `protocol/steps.py`
    SWITCHED   (view)        View           members have switched to it in band
    NOTE       (step)        RecordNote     a record without its vector; SHARE: a part of the vector
    FEED_FROM  (view, step)  offset         records are fed from this one on; the newest is in `offset`
    IMAGE      (view, step)  Image          table of contents of the state after a step; PIECE: some of it
    LOADED                                  a learner needs no state any more
    READ       (view)        ReadRequest    read these chunks of a checkpoint for me; CHUNK: one of them
    FOUNDING   (view)                       I still look for what the lineage begins with, or have a share of
                                            the state for you that I cannot send yet: be patient
    STRIPE     (view, step)  lineage, note  my share of a checkpoint is durable; see `protocol/saving.py`
    UNABLE     (view, step)  reason, flags  this checkpoint can not be made; flag: the views are at fault
    SAVED      (view, step)  offset         this checkpoint is committed, of a state that is so much older
    GAP        (era)                        the connection before this one was in use, so what is said in this
                                            era does not count any more; see `protocol/lines.py`

The first five carry their trial in `flags`; see `protocol/attempts.py`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, TypeVar

import msgspec

from outlast.errors import ProtocolError
from outlast.protocol.naming import Kept
from outlast.protocol.step_words import Check, Fork, Verdict

NOTE_BYTES = 64 << 20
"""Bound on everything that is not bulk; the largest is the description of a state."""


class Kind(IntEnum):
    SCATTER = 1
    RESULT = 2
    PART = 3
    SUM = 4
    HOLDING = 5
    WANT = 6
    GONE = 7
    SWITCHED = 8
    NOTE = 9
    SHARE = 10
    FEED_FROM = 11
    IMAGE = 12
    PIECE = 13
    LOADED = 14
    FOUNDING = 15
    STRIPE = 16
    UNABLE = 17
    SAVED = 18
    READ = 19
    CHUNK = 20
    SURVEY = 21
    ENDING = 24
    GAP = 25


class Way(IntEnum):
    """How a record comes: the flags of NOTE and SHARE."""

    STABLE = 1
    """To a learner; every member holds it."""
    WHOLE = 2
    """To a member that lacks it, all of it by one."""
    HANDED = 3
    """To a learner that has just become a member."""


SHARES = 16
"""A record's vector travels in this many parts, so that its senders can change in the middle."""


class NodeNote(msgspec.Struct, frozen=True, array_like=True):
    """A contribution without its vector."""

    lo: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    hi: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    weight: float
    loss: float
    mask: bytes
    integers: dict[int, bytes]


class PartNote(msgspec.Struct, frozen=True, array_like=True):
    """What a member says when all its contributions to a step are sent."""

    nodes: tuple[NodeNote, ...] = ()
    pending: int = 0
    closing: bool = False
    save: int = 0
    """Whether the state after this step should be saved: 1 for yes, 2 for not now, 0 for don't care."""
    check: Check | None = None
    asked: tuple[str, ...] | None = None
    """Under which names the script wants the state before this step saved; None from one whose script has not
    run there. See `protocol/naming.py`."""
    keeps: tuple[int, ...] = ()
    """Of which states it keeps a copy, that are wanted under some name."""


class RecordNote(msgspec.Struct, frozen=True, array_like=True):
    """A record without its vector."""

    weight: float
    loss: float
    mask: bytes
    integers: dict[int, bytes]
    view: int
    """The view in which the step was completed."""
    shards: tuple[int, ...]
    """Shard → the replica that computed it."""
    save: bool = False
    """Whether the state after this step is saved: somebody wants that, and nobody is against it."""
    norm: float = 0.0
    """The largest norm of a contribution that counted, over its weight; infinite if one was not finite."""
    left_out: tuple[int, ...] = ()
    """Shards that did not count, because their contributions were not sane."""
    verdict: Verdict = Verdict()
    kept: Kept | None = None
    """A state that is wanted under some name, and written now by those who keep it."""

    @property
    def mean_loss(self) -> float:
        """The weighted mean of the shards' losses."""
        return self.loss / self.weight if self.weight else float("nan")


class ReadRequest(msgspec.Struct, frozen=True, array_like=True):
    """Read these chunks of that checkpoint, and send them."""

    tier: int
    name: str
    seal: str
    indices: tuple[int, ...]


class HoldingNote(msgspec.Struct, frozen=True, array_like=True):
    """What goes with a member's newest record."""

    verified: int
    fork: Fork


class FindingsNote(msgspec.Struct, frozen=True, array_like=True):
    """What one member has found in a hearing: of its own slice, and of those that it audits."""

    versions: tuple[tuple[int, ...], ...] = ()
    """For each contribution that is heard, in order, its versions: equal numbers for equal bits."""
    squares: tuple[tuple[float, ...], ...] = ()
    """The same with the squared norm of each shard that it is made of, one witness after the other."""
    held: dict[int, bytes] = {}
    """Owner of an audited slice → digest of what it published, as it is held here."""
    reduced: dict[int, bytes] = {}
    """The same with the digest of what this member came to, if it is one of the auditors."""


N = TypeVar("N")

HOLDING = msgspec.msgpack.Decoder(HoldingNote)
CHECK = msgspec.msgpack.Decoder(Check)
PART = msgspec.msgpack.Decoder(PartNote)
RECORD = msgspec.msgpack.Decoder(RecordNote)
FINDINGS = msgspec.msgpack.Decoder(FindingsNote)
READ = msgspec.msgpack.Decoder(ReadRequest)
encode = msgspec.msgpack.Encoder().encode


def decode(decoder: msgspec.msgpack.Decoder[N], payload: bytes | memoryview) -> N:
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"a note of a peer can not be read: {error}") from error
