"""Whoever has lines written waits for nothing, and is told."""

import threading
from collections.abc import Callable

import pytest

from leaks import nothing_new
from outlast.train import ledger_thread
from outlast.train.ledger_thread import LedgerThread


def test_lines_are_written_in_order_by_another_thread_and_told() -> None:
    with nothing_new():
        ledger, written = LedgerThread(), list[str]()
        for number in range(50):
            ledger.put(
                lambda number=number: written.append(f"write {number}"),  # type: ignore[misc]
                lambda number=number: written.append(f"told {number}"),  # type: ignore[misc]
            )
        ledger.close()
        assert written == [f"{what} {number}" for number in range(50) for what in ("write", "told")]


def test_nobody_waits_for_a_disk_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_thread, "LINES_MOST", 3)
    answers, told = threading.Event(), list[int]()
    ledger = LedgerThread()

    begun = threading.Event()

    def hang() -> None:
        begun.set()
        answers.wait(60)

    def put(write: Callable[[], None]) -> None:
        ledger.put(write, lambda: told.append(1))

    put(hang)
    assert begun.wait(60)
    for _ in range(4):
        put(lambda: None)
    assert not told
    with pytest.raises(OSError, match="disk does not answer"):
        put(lambda: None)
    answers.set()
    ledger.close()
    assert len(told) == 5


def test_a_line_that_cannot_be_written_is_told_and_none_follows_it() -> None:
    ledger, told, failures = LedgerThread(), list[int](), list[Exception]()
    ledger.fails(failures.append)

    def fail() -> None:
        raise OSError("no space left")

    ledger.put(lambda: None, lambda: told.append(1))
    ledger.put(fail, lambda: told.append(2))
    ledger.put(lambda: told.append(3), lambda: told.append(4))
    ledger.close()
    assert told == [1] and [str(one) for one in failures] == ["no space left"]
