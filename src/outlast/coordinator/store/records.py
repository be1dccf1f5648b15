"""What the log's frames carry: the typed payloads, apart from the seam's types so that each may change alone.

The revision is not here: it is the frame's own number, and saying it twice would let the two differ.
"""

from pathlib import Path

import msgspec
from msgspec import Struct

from outlast.coordinator.store.frames import Frame, damaged


class Change(Struct, frozen=True, array_like=True):
    """A key's new value and lease; a value of None deletes the key."""

    key: str
    value: bytes | None
    lease: int = 0


class Kept(Struct, frozen=True, array_like=True):
    """An entry as a compacted log keeps it."""

    key: str
    value: bytes
    created: int
    modified: int
    lease: int = 0


class State(Struct, frozen=True, array_like=True, tag="state"):
    """Everything there is at a revision: what a log begins with."""

    entries: tuple[Kept, ...] = ()


class Transaction(Struct, frozen=True, array_like=True, tag="transaction"):
    """The changes of one revision."""

    changes: tuple[Change, ...]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(State | Transaction)


def encode_record(record: State | Transaction) -> bytes:
    return _encoder.encode(record)


def decode_records(frames: list[Frame], path: Path) -> tuple[State, list[Transaction]]:
    """The state that a log begins with and the transactions that follow it."""
    state, *transactions = (_decode(frame, path) for frame in frames)
    if not isinstance(state, State):
        raise damaged(path, frames[0].start, "the log begins with a transaction instead of a state")
    following = []
    for frame, transaction in zip(frames[1:], transactions, strict=True):
        if not isinstance(transaction, Transaction):
            raise damaged(path, frame.start, "a state stands where a transaction belongs")
        following.append(transaction)
    return state, following


def _decode(frame: Frame, path: Path) -> State | Transaction:
    try:
        record: State | Transaction = _decoder.decode(frame.payload)
        return record
    except msgspec.MsgspecError as error:
        raise damaged(path, frame.start, f"the checksum is right but the record is not: {error}") from error
