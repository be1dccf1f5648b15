"""What a test may not leave behind in its process: threads, open files, child processes.

Only what is *new* counts. Tests share a process, and what an earlier one left (a pool of compilers, a thread
that ends in its own time) may go at any moment: comparing numbers would charge whoever is running then.
"""

import contextlib
import os
import threading
from collections.abc import Iterator

from outlast import kinship


def open_files() -> set[tuple[str, str]]:
    """Each descriptor with what it stands for, since a number that was free may be taken again."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # The listing's own descriptor is closed by now.
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


@contextlib.contextmanager
def nothing_new() -> Iterator[None]:
    """No thread, file or child that was not there before is there afterwards."""
    threads, files = set(threading.enumerate()), open_files()
    children = set(kinship.children_of(os.getpid()))
    yield
    assert set(threading.enumerate()) <= threads
    assert open_files() <= files
    assert set(kinship.children_of(os.getpid())) <= children
