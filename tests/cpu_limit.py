"""How much CPU time a test may take, whatever the clock says.

A test that computes without end has to be stopped, and a machine that is busy with other things must not look
like one. So what is limited is the CPU time of the process that runs the test; the clock is only a net, far
away, for those who wait without end (`timeout` in pyproject.toml), also for a thread that computes without
end: the kernel gives the signal to that one, and Python acts on it in the main thread. Processes that a test
starts are not counted: it waits for them, on a condition.

`@pytest.mark.cpu_limit(seconds)` is for tests that need more, such as one that looks through many seeds.
"""

import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

CPU_LIMIT_S = 240.0
"""Several times what the longest test without a mark takes on a slow machine."""


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """The block may use so much CPU time, and fails wherever it is then. For the main thread."""

    def stop(number: int, frame: FrameType | None) -> None:
        pytest.fail(f"it has used {seconds:g} s of CPU time, and is not done")

    before = signal.signal(signal.SIGPROF, stop)
    left_s, _ = signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        # A limit around this one counts on from where it was, which is to its block's advantage.
        signal.setitimer(signal.ITIMER_PROF, left_s)
        signal.signal(signal.SIGPROF, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    mark = item.get_closest_marker("cpu_limit")
    with cpu_limit(CPU_LIMIT_S if mark is None else mark.args[0]):
        return (yield)
