"""The end of a job whose benchmark was killed with -9 and could not end it itself.

A small process holds one end of a pipe whose other end only the benchmark has. When the benchmark is gone, in
whatever way, the pipe closes, and the process kills the launcher of the job; the kernel ends the rest.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_GUARD = """
import os, sys
sys.stdin.buffer.read()
os.kill(int(sys.argv[1]), 9)
"""


@contextmanager
def lifeline(pid: int) -> Iterator[None]:
    """Should this process die inside the block, so does that one."""
    command = [sys.executable, "-S", "-c", _GUARD, str(pid)]
    guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
    finally:
        # Killed before its pipe closes, which would be the sign for it to act.
        guard.kill()
        guard.wait()
        assert guard.stdin is not None
        guard.stdin.close()
