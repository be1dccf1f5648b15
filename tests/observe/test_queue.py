"""The queue: nobody waits on it, nothing is written twice, and what is left out is counted."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence

import pytest

from leaks import nothing_new
from outlast.observe import queue as observe_queue
from outlast.observe.queue import Events
from outlast.observe.written import Written
from outlast.protocol.events import Standstill, Step
from patience import PATIENCE_S


class Kept:
    """A sink that keeps what it is given; it can be made to hang or to fail."""

    def __init__(self) -> None:
        self.lines: list[Written] = []
        self.batches = 0
        self.closed = False
        self.let_go = threading.Event()
        self.let_go.set()
        self.reached = threading.Event()
        self.error: Exception | None = None

    def write(self, batch: Sequence[Written]) -> None:
        self.reached.set()
        assert self.let_go.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        self.batches += 1
        self.lines += batch

    def close(self) -> None:
        self.closed = True


def numbers(kept: Kept) -> list[int]:
    return [one.event.step for one in kept.lines if isinstance(one.event, Step)]


def test_events_come_in_order_with_their_envelope() -> None:
    kept = Kept()
    with nothing_new():
        events = Events("replica-2", [kept])
        events.emit(Step(step=1, view=1))
        events.incarnation = 3
        events.emit(Step(step=2, view=1))
        events.emit(Standstill(view=1, cause="who knows"), incarnation=2)
        events.close()
        events.emit(Step(step=3, view=1))
        events.close()
    assert numbers(kept) == [1, 2], "after the end nothing is taken"
    assert [one.incarnation for one in kept.lines] == [0, 3, 2]
    assert {(one.source, one.pid, one.version) for one in kept.lines} == {("replica-2", os.getpid(), 1)}
    assert all(one.time > 1e9 and one.monotonic > 0 for one in kept.lines)
    assert kept.closed


def test_many_events_are_few_batches() -> None:
    kept = Kept()
    with Events("replica-0", [kept]) as events:
        for number in range(1000):
            events.emit(Step(step=number, view=1))
    assert numbers(kept) == list(range(1000))
    assert kept.batches < 100


def test_a_sink_that_hangs_costs_events_and_nobody_any_time() -> None:
    kept = Kept()
    kept.let_go.clear()
    events = Events("replica-0", [kept], most=10)
    events.emit(Step(step=0, view=1))
    assert kept.reached.wait(PATIENCE_S)
    for number in range(1, 31):
        events.emit(Step(step=number, view=1))
    kept.let_go.set()
    while len(kept.lines) < 11:
        pass
    events.emit(Step(step=31, view=1))
    events.close()
    assert numbers(kept) == [*range(11), 31]
    assert [one.dropped for one in kept.lines] == [0] * 11 + [20], "where they are missing"


def test_closing_takes_a_bounded_time() -> None:
    kept = Kept()
    kept.let_go.clear()
    events = Events("replica-0", [kept])
    events.emit(Step(step=0, view=1))
    events.close(within_s=0.01)
    kept.let_go.set()
    events._thread.join(PATIENCE_S)
    assert not events._thread.is_alive()


def test_a_sink_that_fails_is_left_alone_and_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    bad, good = Kept(), Kept()
    bad.error = ValueError("no")
    with Events("replica-0", [bad, good]) as events:
        events.emit(Step(step=0, view=1))
        assert good.reached.wait(PATIENCE_S)
        events.emit(Step(step=1, view=1))
    assert numbers(good) == [0, 1]
    assert len(caplog.records) == 1


def test_a_forked_child_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what it emits nor what its parent had in the queue, which the parent writes itself."""
    monkeypatch.setattr(observe_queue, "FLUSH_EVERY_S", 60.0)
    kept = Kept()
    reading, writing = os.pipe()
    with Events("replica-0", [kept]) as events:
        events.emit(Step(step=0, view=1))
        assert kept.reached.wait(PATIENCE_S)
        # The thread sleeps now, and this one waits in the queue.
        events.emit(Step(step=1, view=1))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(60)
                for number in range(100_000):
                    events.emit(Step(step=number, view=1))
                events.close()
                os.write(writing, b"%d" % len(kept.lines))
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert os.read(reading, 10) == b"1"
    os.close(reading)
    os.close(writing)
    assert numbers(kept) == [0, 1]


def test_many_threads_may_emit() -> None:
    kept = Kept()
    with Events("replica-0", [kept], most=500) as events:
        threads = [
            threading.Thread(target=lambda: [events.emit(Step(step=n, view=1)) for n in range(1000)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        while events._queue.qsize() >= 500:
            pass
        events.emit(Step(step=0, view=1))
    assert len(kept.lines) + sum(one.dropped for one in kept.lines) == 4001
