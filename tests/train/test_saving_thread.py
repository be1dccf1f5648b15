"""Work is done in order, what fails takes nothing else with it, and once it is closed nothing is taken."""

import logging
import threading

import pytest

from outlast.train.saving_thread import SavingThread
from patience import PATIENCE_S

WAIT_S = PATIENCE_S


def test_work_is_done_in_order_and_counted_until_it_is_done() -> None:
    changed = threading.Condition()
    thread = SavingThread(changed)
    go_on, done = threading.Event(), list[int]()
    with changed:
        thread.do(lambda: done.append(1 if go_on.wait(WAIT_S) else 0))
        thread.do(lambda: done.append(2))
        assert thread.unfinished == 2
        go_on.set()
        assert changed.wait_for(lambda: not thread.unfinished, WAIT_S)
        thread.close()
    thread.end()
    assert done == [1, 2]


def test_work_that_fails_is_told_and_the_next_is_done(caplog: pytest.LogCaptureFixture) -> None:
    changed = threading.Condition()
    thread = SavingThread(changed)
    done = list[int]()

    def fail() -> None:
        raise ZeroDivisionError

    with caplog.at_level(logging.ERROR), changed:
        thread.do(fail)
        thread.do(lambda: done.append(2))
        assert changed.wait_for(lambda: not thread.unfinished, WAIT_S)
        thread.close()
    thread.end()
    assert done == [2] and "goes on" in caplog.text


def test_once_it_is_closed_it_takes_nothing() -> None:
    threads = threading.enumerate()
    changed = threading.Condition()
    thread = SavingThread(changed)
    with changed:
        thread.close()
        thread.do(lambda: None)
        assert thread.unfinished == 0
    thread.end()
    assert [one for one in threading.enumerate() if one not in threads] == [], "nor did it begin"
