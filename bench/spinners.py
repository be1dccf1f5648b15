"""Processes that do nothing but use CPU, and never outlive the benchmark."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_LOOP = """
import sys
from outlast.kinship import die_with_parent
die_with_parent(int(sys.argv[1]))
while True: pass
"""


@contextmanager
def spinners(count: int) -> Iterator[None]:
    """That many busy loops beside the block."""
    running: list[subprocess.Popen[bytes]] = []
    try:
        # The kernel ends them should this process be killed; otherwise the block does. Each has a session of
        # its own: Linux shares the CPU out by session first, and all in one would be a load of one.
        command = [sys.executable, "-c", _LOOP, str(os.getpid())]
        running.extend(subprocess.Popen(command, start_new_session=True) for _ in range(count))
        yield
    finally:
        for process in running:
            process.kill()
        for process in running:
            process.wait()
