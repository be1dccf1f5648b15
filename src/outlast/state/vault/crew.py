"""A few threads that work off one list together, and stop at the first error.

Hashing, compressing and moving bytes all release the interpreter, so threads are enough to keep a disk or a
network busy. Each takes the next piece of work when it is done with the last one: no more than one piece per
thread is in memory, and a list that is made lazily is made no faster than it is worked off.
"""

import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def work_off(items: Iterable[T], work: Callable[[T], None], threads: int) -> None:
    """Call `work` with every item, on that many threads. The first error ends it: the rest is not begun, and
    the error is raised when nobody works any more."""
    source = iter(items)
    taking = threading.Lock()
    errors: list[BaseException] = []

    def worker() -> None:
        try:
            while not errors:
                with taking:
                    item = next(source)
                work(item)
        except StopIteration:
            pass
        except BaseException as error:
            errors.append(error)

    crew = [threading.Thread(target=worker, name="outlast-chunks", daemon=True) for _ in range(threads - 1)]
    for thread in crew:
        thread.start()
    # The caller works, too. If it is interrupted, the error is noted and the others come to their end.
    worker()
    for thread in crew:
        thread.join()
    if errors:
        raise errors[0]
