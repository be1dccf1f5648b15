"""The order of locks is checked wherever tests run; these are the checks themselves."""

import threading

import pytest

from outlast import locks
from outlast.locks import CheckedLock, OutOfOrder


def test_tests_check_the_order() -> None:
    assert isinstance(locks.lock("mesh"), CheckedLock)


def test_locks_are_taken_downwards_only() -> None:
    helm, engine, mesh = map(locks.lock, ("helm", "engine", "mesh"))
    with helm, engine, mesh:
        pass
    with mesh, pytest.raises(OutOfOrder, match="engine is taken by one that holds mesh"):
        engine.acquire()
    with engine, mesh:
        pass


def test_no_lock_is_taken_twice_nor_two_of_a_kind() -> None:
    one, other = locks.lock("connection"), locks.lock("connection")
    with one:
        for lock in (one, other):
            with pytest.raises(OutOfOrder):
                lock.acquire()


def test_one_that_does_not_wait_may_try() -> None:
    helm = locks.lock("helm")
    with locks.lock("engine"):
        assert helm.acquire(blocking=False)
        helm.release()


def test_what_another_thread_holds_is_its_own_affair() -> None:
    mesh, engine = locks.lock("mesh"), locks.lock("engine")
    with mesh:
        thread = threading.Thread(target=lambda: engine.acquire() and engine.release())
        thread.start()
        thread.join()
    assert not engine.locked()


def test_one_can_wait_on_a_condition() -> None:
    changed, found = locks.Monitor("engine"), list[int]()

    def find() -> None:
        with changed:
            found.append(1)
            changed.notify_all()

    thread = threading.Thread(target=find)
    with changed:
        thread.start()
        assert changed.wait_for(lambda: found, timeout=60)
    thread.join()
