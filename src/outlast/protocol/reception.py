"""What comes in over the mesh: where its bytes belong, and what it means.

Bulk goes straight to its place; everything else becomes an event of the participant. Frames of members go
through the member core, which drops, holds or passes them by their view; what is given to a learner does not,
since a snapshot is named by its own view, and a stable record is a fact in any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.protocol import codec
from outlast.protocol.header import Header
from outlast.protocol.kinds import READ, Kind, Way, decode
from outlast.protocol.lines import Line
from outlast.protocol.member import Frame
from outlast.protocol.saving import SaveBody
from outlast.protocol.step_words import BLANK, Body, Handed, Mode, Switched, Whole
from outlast.protocol.todos import Read
from outlast.protocol.views import Member

if TYPE_CHECKING:
    from outlast.protocol.driver import Driver


class Reception:
    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def room(self, line: Line, header: Header) -> memoryview | None:
        """Where the payload of a frame belongs; None if it is not wanted."""
        driver, life = self._driver, self._driver.life
        if life.over is not None or not life.post.lines.takes(line, header.view):
            return None
        match header.kind:
            case Kind.SCATTER | Kind.RESULT:
                return driver.bulk.room(line.peer, header)
            case Kind.SHARE:
                return life.inbox.slot(line.peer.replica, header) if self._wants(header) else None
            case Kind.PIECE:
                return life.arrival.slot(header)
            case Kind.CHUNK:
                return driver.gathering.room(header) if driver.gathering is not None else None
        return codec.room(header)

    def arrived(self, line: Line, header: Header, payload: memoryview | None) -> None:
        life = self._driver.life
        if header.kind == Kind.GAP:
            life.post.lines.gap(line, header.view)
        elif life.over is None and life.post.lines.takes(line, header.view):
            self._arrived(line.peer, header, payload)

    def _arrived(self, sender: Member, header: Header, payload: memoryview | None) -> None:
        driver = self._driver
        if header.kind in (Kind.SCATTER, Kind.RESULT):
            if payload is not None and driver.bulk.takes(header.view):
                # Nothing is said with it, so there is nothing for the cores to decide.
                driver.bulk.take(sender.replica, header, payload)
            elif payload is not None:
                self._frame(sender, header, None, payload)
            return
        heard = codec.read(header, payload)
        if heard is None:
            self._given(sender, header, payload)
        elif isinstance(heard.body, Switched):
            driver.act(driver.participant.switched(heard.body.view, driver.now))
        else:
            self._frame(sender, header, heard.body, heard.extra, moves=heard.moves)

    def _given(self, sender: Member, header: Header, payload: memoryview | None) -> None:
        driver, life, now = self._driver, self._driver.life, self._driver.now
        match header.kind:
            case Kind.NOTE | Kind.SHARE:
                if payload is not None and self._wants(header):
                    self._record(sender, header, payload)
                elif header.kind == Kind.NOTE and self._needs_no_record(header):
                    self._frame(sender, header, Handed(header.step))
            case Kind.FEED_FROM:
                life.inbox.fed_again(header.view, header.step, header.offset)
                driver.act(driver.participant.fed_from(header.view, header.step, header.offset, now))
            case Kind.IMAGE:
                life.heard(now)
                if self._may_need(header.view):
                    life.arrival.described(header, b"" if payload is None else bytes(payload), driver.bulk)
                    driver.look_at_state()
            case Kind.PIECE:
                life.heard(now)
                if payload is not None and life.arrival.arrived(header):
                    driver.look_at_state()
            case Kind.FOUNDING:
                life.heard(now)
            case Kind.READ:
                life.heard(now)
                request = decode(READ, b"" if payload is None else payload)
                life.asked = Read(header.view, sender, request)
                driver.outlet.wake()
            case Kind.CHUNK:
                if payload is not None and driver.gathering is not None:
                    driver.gathering.arrived(header, payload)
            case Kind.LOADED:
                driver.act(driver.participant.learner_loaded(sender, now))

    def _wants(self, header: Header) -> bool:
        """Whether this part of a record is needed. What members went back behind may still be on its way,
        and must not be mixed with what they have done instead."""
        driver = self._driver
        void = header.flags == Way.STABLE and driver.steps.undone(header.step, header.view)
        return not void and driver.life.inbox.wants(header, driver.member.view.number, driver.steps.newest)

    def _needs_no_record(self, header: Header) -> bool:
        """Whether a record is handed to this replica that it has already. That it is handed is news."""
        present = header.view == self._driver.member.view.number
        return header.flags == Way.HANDED and present and header.step <= self._driver.steps.newest

    def _may_need(self, view: int) -> bool:
        """Whether this replica has no state, or may turn out to have none when all have spoken in this
        view."""
        steps = self._driver.steps
        return steps.newest == BLANK or (steps.mode is Mode.RECONCILING and view == steps.view.number)

    def _record(self, sender: Member, header: Header, payload: memoryview) -> None:
        driver = self._driver
        record = driver.life.inbox.came(sender.replica, header, payload)
        if record is None:
            return
        verdict = record.note.verdict
        match header.flags:
            case Way.STABLE:
                driver.act(driver.participant.offered(record.step, driver.now, header.view, verdict))
            case Way.WHOLE:
                self._frame(sender, header, Whole(record.step, verdict))
            case Way.HANDED:
                self._frame(sender, header, Handed(record.step, verdict))

    def _frame(
        self,
        sender: Member,
        header: Header,
        body: Body | SaveBody | None,
        payload: Any = None,
        *,
        moves: bool = False,
    ) -> None:
        driver = self._driver
        frame = Frame(
            sender=sender.replica,
            incarnation=header.incarnation,
            view=header.view,
            body=body,
            payload=(header, payload),
            moves=moves,
        )
        driver.act(driver.participant.frame(frame, driver.now))
