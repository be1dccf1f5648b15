"""What comes in over the mesh: where its bytes belong, and what it means.

The mesh's thread calls this. Bulk goes straight to its place; everything else becomes an event of the
participant, and what follows from that is done by the engine. Frames of members go through the member core,
which drops, holds or passes them by their view; what is given to a learner does not, since a snapshot is
named by its own view, and a stable record is a fact in any.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from outlast.errors import ProtocolError
from outlast.mesh.frames import Header
from outlast.mesh.kinds import CHECK, HOLDING, PART, Kind, Way, decode
from outlast.protocol.lines import Line, Lines
from outlast.protocol.member import Frame
from outlast.protocol.participant import Action, Participant
from outlast.protocol.saving import SaveBody, Saved, Stripe, Unable
from outlast.protocol.step_words import (
    BLANK,
    Body,
    Ending,
    Gone,
    Handed,
    Holding,
    Mode,
    Part,
    Sum,
    Surveyed,
    Trial,
    Want,
    Whole,
)
from outlast.protocol.views import Member, View
from outlast.train.exchange import Exchange
from outlast.train.gathering import decode_request
from outlast.train.post import room
from outlast.train.supply import Supply

_VIEW = msgspec.msgpack.Decoder(View)
_REASON = msgspec.msgpack.Decoder(str)


class Reception:
    """The mesh's sink."""

    def __init__(
        self,
        participant: Participant,
        exchange: Exchange,
        supply: Supply,
        changed: threading.Condition,
        *,
        act: Callable[[list[Action]], None],
        broken: Callable[[Exception], None],
        wake: Callable[[], None],
        lines: Lines[Any],
        settle: Callable[[], None],
        connected: Callable[[Line], None],
        lost: Callable[[Line, str], None],
        heard_of_gap: Callable[[Line, int], None],
    ) -> None:
        self._participant = participant
        self._exchange = exchange
        self._supply = supply
        self._changed = changed
        self._act = act
        self._broken = broken
        self._wake = wake
        self._lines = lines
        self._settle = settle
        self._connected = connected
        self._lost = lost
        self._heard_of_gap = heard_of_gap

    def destination(self, line: Line, header: Header) -> memoryview | None:
        sender = line.peer
        with self._changed:
            if not self._lines.takes(line, header.view):
                return None
            match header.kind:
                case Kind.SCATTER | Kind.RESULT:
                    return self._exchange.destination(sender, header)
                case Kind.SHARE:
                    return self._supply.slot(sender.replica, header) if self._wants(header) else None
                case Kind.PIECE:
                    return self._supply.arrival.slot(header)
                case Kind.CHUNK:
                    return self._supply.gathering.room(header) if self._supply.gathering is not None else None
            return room(header)

    def arrived(self, line: Line, header: Header, payload: memoryview | None) -> None:
        with self._changed:
            try:
                if header.kind == Kind.GAP:
                    self._heard_of_gap(line, header.view)
                elif self._lines.takes(line, header.view):
                    self._arrived(line.peer, header, payload)
                    self._settle()
            except ProtocolError:
                # The peer's fault, which costs it the connection.
                raise
            except Exception as error:
                # Ours: something was decided and not carried out, so this replica cannot go on.
                self._broken(error)
                raise

    def connected(self, line: Line) -> None:
        with self._changed:
            self._connected(line)

    def lost(self, line: Line, why: str) -> None:
        with self._changed:
            self._supply.lost(line.peer.replica)
            self._lost(line, why)

    def _wants(self, header: Header) -> bool:
        """Whether this part of a record is needed. What members went back behind may still be on its way,
        and must not be mixed with what they have done instead."""
        steps = self._participant.steps
        void = header.flags == Way.STABLE and steps.undone(header.step, header.view)
        return not void and self._supply.wants(header, self._participant.member.view.number, steps.newest)

    def _arrived(self, sender: Member, header: Header, payload: memoryview | None) -> None:
        match header.kind:
            case Kind.SCATTER | Kind.RESULT:
                if payload is not None and self._exchange.takes(header.view):
                    # Nothing is said with it, so there is nothing for the cores to decide.
                    self._exchange.deliver(sender.replica, header, payload)
                elif payload is not None:
                    self._frame(sender, header, None, payload)
            case Kind.PART:
                note = decode(PART, _bytes(payload))
                part = Part(header.step, note.pending, note.closing, _trial(header), note.check)
                self._frame(sender, header, part, note)
            case Kind.ENDING:
                self._frame(sender, header, Ending(header.step, decode(CHECK, _bytes(payload))))
            case Kind.SURVEY:
                self._frame(sender, header, Surveyed(header.step, _trial(header)), _bytes(payload))
            case Kind.SUM:
                self._frame(sender, header, Sum(header.step, _trial(header)), _bytes(payload))
            case Kind.HOLDING:
                # Blank is -1, and a header has no negative numbers.
                more = decode(HOLDING, _bytes(payload))
                holding = Holding(header.step - 1, header.flags == 1, more.verified, more.fork)
                self._frame(sender, header, holding, moves=not holding.running)
            case Kind.WANT:
                self._frame(sender, header, Want(header.step))
            case Kind.GONE:
                self._frame(sender, header, Gone(header.step))
            case Kind.STRIPE:
                self._frame(sender, header, Stripe(header.step, header.offset, _bytes(payload)))
            case Kind.UNABLE:
                reason = decode(_REASON, _bytes(payload))
                self._frame(sender, header, Unable(header.step, reason, again=bool(header.flags)))
            case Kind.SAVED:
                self._frame(sender, header, Saved(header.step, header.offset))
            case _:
                self._given(sender, header, payload)

    def _given(self, sender: Member, header: Header, payload: memoryview | None) -> None:
        now = time.monotonic()
        match header.kind:
            case Kind.SWITCHED:
                self._act(self._participant.switched(decode(_VIEW, _bytes(payload)), now))
            case Kind.NOTE | Kind.SHARE:
                if payload is not None and self._wants(header):
                    self._record(sender, header, payload, now)
                elif header.kind == Kind.NOTE and self._needs_no_record(header):
                    self._frame(sender, header, Handed(header.step))
            case Kind.FEED_FROM:
                self._supply.fed_again(header.view, header.offset)
                self._act(self._participant.fed_from(header.view, header.step, header.offset, now))
            case Kind.IMAGE:
                self._supply.heard(now)
                if self._may_need(header.view):
                    self._supply.arrival.described(header, _bytes(payload))
                    self._look_at_state(now)
            case Kind.PIECE:
                self._supply.heard(now)
                if payload is not None and self._supply.arrival.arrived(header):
                    self._look_at_state(now)
            case Kind.FOUNDING:
                self._supply.heard(now)
            case Kind.READ:
                self._supply.heard(now)
                self._supply.asked = (header.view, sender.replica, decode_request(_bytes(payload)))
                self._wake()
            case Kind.CHUNK:
                if payload is not None and self._supply.gathering is not None:
                    self._supply.gathering.arrived(header, payload)
            case Kind.LOADED:
                self._act(self._participant.learner_loaded(sender, now))

    def _needs_no_record(self, header: Header) -> bool:
        """Whether a record is handed to this replica that it has already. That it is handed is news."""
        present = header.view == self._participant.member.view.number
        return header.flags == Way.HANDED and present and header.step <= self._participant.steps.newest

    def _may_need(self, view: int) -> bool:
        """Whether this replica has no state, or may turn out to have none when all have spoken in this
        view."""
        steps = self._participant.steps
        return steps.newest == BLANK or (steps.mode is Mode.RECONCILING and view == steps.view.number)

    def _look_at_state(self, now: float) -> None:
        arrival = self._supply.arrival
        if arrival.complete and self._participant.steps.newest == BLANK:
            self._act(self._participant.loaded(arrival.step, now, arrival.view))
            self._wake()

    def _record(self, sender: Member, header: Header, payload: memoryview, now: float) -> None:
        record = self._supply.came(sender.replica, header, payload)
        if record is None:
            return
        match header.flags:
            case Way.STABLE:
                self._act(self._participant.offered(record.step, now, header.view, record.note.verdict))
            case Way.WHOLE:
                self._frame(sender, header, Whole(record.step, record.note.verdict))
            case Way.HANDED:
                self._frame(sender, header, Handed(record.step, record.note.verdict))

    def _frame(
        self,
        sender: Member,
        header: Header,
        body: Body | SaveBody | None,
        payload: Any = None,
        *,
        moves: bool = False,
    ) -> None:
        frame = Frame(
            sender=sender.replica,
            incarnation=header.incarnation,
            view=header.view,
            body=body,
            payload=(header, payload),
            moves=moves,
        )
        self._act(self._participant.frame(frame, time.monotonic()))


def _trial(header: Header) -> Trial:
    try:
        return Trial(header.flags)
    except ValueError:
        raise ProtocolError(f"a peer speaks of trial {header.flags}, which there is not") from None


def _bytes(payload: memoryview | None) -> bytes:
    return b"" if payload is None else bytes(payload)
