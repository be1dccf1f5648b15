"""What limits a test is the CPU time that it takes, not the time that passes."""

import threading
import time

import pytest

from cpu_limit import cpu_limit

LIMIT_S = 0.05
FAR_MORE_S = 20.0


def compute() -> None:
    end = time.process_time() + FAR_MORE_S
    while time.process_time() < end:
        pass


def test_whoever_computes_too_long_is_stopped() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"0\.05 s of CPU time"), cpu_limit(LIMIT_S):
        compute()


def test_time_that_passes_while_others_compute_does_not_count() -> None:
    with cpu_limit(LIMIT_S):
        threading.Event().wait(4 * LIMIT_S)


def test_a_limit_inside_another_leaves_the_outer_one_in_force() -> None:
    with cpu_limit(LIMIT_S):
        with cpu_limit(FAR_MORE_S):
            pass
        with pytest.raises(pytest.fail.Exception, match=r"0\.05 s"):
            compute()
