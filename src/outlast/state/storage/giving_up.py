"""How a call learns that nobody waits for it any more.

A call that hangs is left alone by its caller (`patience.py`), in a thread of its own that cannot be stopped.
When it comes back to life, its caller may long have used the memory for something else. So, before a storage
makes an object visible, it asks here; and what was given up stays invisible.
"""

import threading

from outlast.errors import StorageUnavailable

_this_thread = threading.local()


def watch(given_up: threading.Event) -> None:
    """From now on, what this thread does is void once this event is set."""
    _this_thread.given_up = given_up


def check() -> None:
    given_up: threading.Event | None = getattr(_this_thread, "given_up", None)
    if given_up is not None and given_up.is_set():
        raise StorageUnavailable("This call was given up by its caller, because it took too long.")
