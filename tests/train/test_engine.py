"""How the training thread waits, and what it does meanwhile; the cluster tests have the rest."""

from types import SimpleNamespace
from typing import Any

import pytest

from outlast.errors import JobFailed
from outlast.locks import Monitor
from outlast.protocol.todos import Finished, JobEnded, Leave, Stage, Todo
from outlast.protocol.views import Outcome
from outlast.train.engine import Engine


class Waiting:
    """All of an engine that waits: a driver that has something to do after some time, and gifts."""

    def __init__(self, *todos: Todo | None) -> None:
        self._todos = list(todos)
        self._changed = Monitor("engine")
        self._lock = self._changed.lock
        self.events: list[str] = []
        self.driver: Any = SimpleNamespace(next=self._ask)
        self._gifts: Any = SimpleNamespace(idle=True, settle=self._settle)

    def _ask(self, stage: Stage, _now: float) -> Todo | None:
        assert stage is Stage.STEPPING and self._is_held()
        self.events.append("asks")
        return self._todos.pop(0)

    def _is_held(self) -> bool:
        return self._changed._is_owned()  # type: ignore[attr-defined,no-any-return]

    def _wait(self) -> None:
        assert self._is_held()
        self.events.append("waits")

    def _settle(self) -> None:
        assert not self._is_held(), "copying takes a while, and others need the lock"
        self.events.append("settles")
        self._gifts.idle = True


def next_of(waiting: Waiting) -> Todo:
    engine: Any = waiting
    return Engine._next(engine, Stage.STEPPING)


def test_it_waits_until_there_is_something_to_do() -> None:
    done = Finished()
    waiting = Waiting(None, None, done)
    assert next_of(waiting) is done
    assert waiting.events == ["asks", "waits", "asks", "waits", "asks"]


def test_what_is_being_copied_is_completed_before_it_waits() -> None:
    """Somebody waits for it, and there is no next step beside which it could be copied."""
    done = Finished()
    waiting = Waiting(None, None, done)
    waiting._gifts.idle = False
    assert next_of(waiting) is done
    assert waiting.events == ["asks", "settles", "asks", "waits", "asks"]


@pytest.mark.parametrize(
    ("todo", "status"),
    [
        (Leave(), 0),
        (JobEnded(Outcome(finished=True, reason="")), 0),
        (JobEnded(Outcome(finished=False, reason="a bug")), JobFailed.exit_code),
    ],
)
def test_a_process_that_is_not_needed_any_more_ends(todo: Todo, status: int) -> None:
    with pytest.raises(SystemExit) as ended:
        next_of(Waiting(todo))
    assert ended.value.code == status


def test_one_with_peers_serves_them_while_it_waits_and_without_the_lock() -> None:
    waiting = Waiting()
    waiting_engine: Any = waiting

    def attend(_timeout_s: float) -> None:
        assert not waiting._is_held()
        waiting.events.append("attends")

    waiting_engine._mesh = SimpleNamespace(announce=lambda: waiting.events.append("announces"), attend=attend)
    with waiting._changed:
        Engine._wait(waiting_engine)
        assert waiting._is_held()
    assert waiting.events == ["announces", "attends"]


def test_one_that_is_alone_looks_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: Any = Waiting()
    waiting._mesh = None
    monkeypatch.setattr("outlast.train.engine.LOOK_AGAIN_S", 0.01)
    with waiting._changed:
        Engine._wait(waiting)
        assert waiting._is_held()
