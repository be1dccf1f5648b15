"""Patience with stopped processes: it ends, but only with what was seen."""

from outlast.protocol.stopped import StoppedWatch


def test_one_that_stays_stopped_is_given_up() -> None:
    watch = StoppedWatch(3.0)
    assert [watch.look(True, now) for now in (10.0, 11.0, 12.0, 12.9, 13.0)] == [False] * 4 + [True]


def test_one_that_wakes_in_between_is_not() -> None:
    watch = StoppedWatch(3.0)
    seen = {10.0: True, 11.0: True, 12.0: False, 13.0: True, 14.0: True, 15.0: True, 16.0: True}
    assert [now for now, stopped in seen.items() if watch.look(stopped, now)] == [16.0]


def test_time_in_which_nobody_looked_does_not_count() -> None:
    watch = StoppedWatch(3.0)
    seen = (10.0, 11.0, 12.0, 3600.0, 3601.0, 3602.0, 3603.0)
    assert [now for now in seen if watch.look(True, now)] == [3603.0]


def test_one_that_runs_is_never_given_up() -> None:
    watch = StoppedWatch(3.0)
    assert not any(watch.look(False, float(now)) for now in range(100))
