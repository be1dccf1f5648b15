"""Tensors behind the driver: what it calls bulk (`protocol/seams.py`).

Everything is done at once, in whichever thread has brought the last piece: folding a slice takes less time
than handing it to another thread would.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from outlast.protocol.driver import Driver
from outlast.protocol.header import Header
from outlast.protocol.kinds import SHARES, PartNote, RecordNote, encode
from outlast.protocol.seams import At, Said, Worked
from outlast.protocol.step_words import Body, Conclude, Judge, Part, Sum, Survey, Surveyed, Verdict
from outlast.protocol.views import Member, View
from outlast.state.contents import decode_image
from outlast.state.image import Assembly
from outlast.train.bailiff import Bailiff
from outlast.train.exchange import Exchange
from outlast.train.gradients import Gradients
from outlast.train.records import Record, share


class TensorBulk:
    shares = SHARES

    def __init__(
        self,
        exchange: Exchange,
        gradients: Gradients,
        replica: int,
        seed: Callable[[], int],
        note: Callable[[int, str], None],
    ) -> None:
        self._exchange = exchange
        self._gradients = gradients
        self._bailiff = Bailiff(exchange, replica, seed, note)
        self._view = View()
        self._driver: Driver

    def driven_by(self, driver: Driver) -> None:
        self._driver = driver
        self._exchange.ship = driver.ship

    def adopt(self, view: View) -> None:
        self._view = view
        self._exchange.adopt(view)

    def takes(self, view: int) -> bool:
        return self._exchange.takes(view)

    def contribute(self, at: At, said: Said) -> None:
        self._exchange.contribute(at.step, self._gradients.nodes(), said)

    def contribute_nothing(self, at: At, said: Said) -> None:
        self._exchange.contribute_nothing(at.step, said)

    def is_asked(self, step: int) -> bool:
        return bool(self._exchange.court(step).asked)

    def testify(self, at: At) -> None:
        asked = self.is_asked(at.step)
        self._exchange.testify(at.step, self._gradients.opinions() if asked else ())

    def goes_with(self, at: At, body: Body) -> bytes:
        match body:
            case Part():
                return encode(self._exchange.part(at.step, at.trial))
            case Surveyed():
                return self._exchange.own_survey(at.step)
            case Sum():
                return self._exchange.sum_note(at.step, at.trial)
        return b""

    def start(self, work: Survey | Conclude | Judge, at: At) -> None:
        match work:
            case Survey():
                self._exchange.survey(at.step)
                done = Worked(at, Survey)
            case Conclude():
                self._exchange.conclude(at.step, at.trial)
                done = Worked(at, Conclude)
            case Judge():
                again, charges = self._bailiff.judge(self._view, at.step, at.trial)
                done = Worked(at, Judge, again, tuple(charges))
        self._driver.done(done, time.monotonic())

    def last_words(self, step: int) -> Mapping[int, PartNote]:
        return self._exchange.last_words(step)

    def room(self, sender: Member, header: Header) -> memoryview | None:
        return self._exchange.destination(sender, header)

    def take(self, sender: int, header: Header, payload: Any) -> None:
        self._exchange.deliver(sender, header, payload)

    def record(self, step: int, verdict: Verdict) -> Record:
        return self._exchange.record(step, verdict)

    def vector(self) -> Tensor:
        return self._exchange.vectors.take()

    def share(self, vector: Tensor, index: int) -> memoryview:
        return share(vector, index)

    def copied(self, vector: Tensor) -> Tensor:
        copy = self._exchange.vectors.take()
        copy.copy_(vector)
        return copy

    def given(self, step: int, vector: Tensor, note: RecordNote) -> Record:
        return Record(step, vector, note, self._exchange.vectors)

    def state(self, encoded: bytes) -> Assembly:
        return Assembly(decode_image(encoded))
