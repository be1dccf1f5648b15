"""Writing and reading large files without the system's copy of them in memory.

What is written to a file goes into the page cache first: the system finds a page for every 4 KiB, copies, and
has somebody else bring it to the disk, all of which takes CPU time from training. An object that is made
durable before anybody goes on gains nothing by that, and nobody is about to read it. So the bytes go to the
disk straight from where they lie (`O_DIRECT`), wherever the file system can do that.

The same goes for reading: a checkpoint is read once, and the system reads a small file ahead in small steps.
Asked for all of it at once, straight into its place, the disk answers sooner and the CPU has less to do.

It can only where memory and file are aligned to pages. What is not, the rest of a page at the end, goes the
usual way; what is to be read to a place that is not aligned goes through a piece of memory that is, in large
pages (see `large_pages.py`). What does
not support it at all says so at once, and is written and read the usual way, too.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Callable

from outlast.state.large_pages import prefer_large_pages

WORTH_IT_BYTES = 256 << 10
"""Smaller ones take longer to wait for than to copy."""
PIECE_BYTES = 64 << 20
ASIDE_BYTES = 4 << 20
LARGE_PAGE_BYTES = 2 << 20
_UNABLE = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})
_this_thread = threading.local()


def write_around_cache(file: int, data: memoryview) -> int:
    """Write the beginning of `data` to an empty file opened for writing, as much of it as can be written that
    way; how much it was. The file goes on behind that with ordinary writes."""
    if len(data) < WORTH_IT_BYTES or not _begins_a_page(data):
        return 0
    whole = len(data) // mmap.PAGESIZE * mmap.PAGESIZE
    return _directly(file, whole, lambda done: os.write(file, data[done : min(done + PIECE_BYTES, whole)]))


def read_around_cache(file: int, out: memoryview) -> int:
    """Fill the beginning of `out` from the beginning of a file, as much of it as can be read that way; how
    much it was. The rest has to be read as usual, and so has a file that is shorter than it should be."""
    if len(out) < WORTH_IT_BYTES:
        return 0
    if _begins_a_page(out):
        whole = len(out) // mmap.PAGESIZE * mmap.PAGESIZE
        return _directly(
            file, whole, lambda done: os.preadv(file, [out[done : min(done + PIECE_BYTES, whole)]], done)
        )
    aside = _memory_aside()

    def read_aside(done: int) -> int:
        count = min(os.preadv(file, [aside], done), len(out) - done)
        out[done : done + count] = aside[:count]
        return count

    return _directly(file, len(out), read_aside)


def _directly(file: int, size: int, move: Callable[[int], int]) -> int:
    """Call `move` with what has been moved so far until that is all, or the system cannot go on like that."""
    if not hasattr(os, "O_DIRECT"):
        return 0
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    done = 0
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, flags | os.O_DIRECT)
        # A disk that is nearly full may take a piece that ends anywhere, and so may a file.
        while done < size and done % mmap.PAGESIZE == 0 and (count := move(done)):
            done += count
    except OSError as error:
        if error.errno not in _UNABLE:
            raise
    finally:
        fcntl.fcntl(file, fcntl.F_SETFL, flags)
    return done


def _memory_aside() -> memoryview:
    """Aligned memory of this thread, to read to what belongs to a place that is not."""
    memory: memoryview | None = getattr(_this_thread, "memory", None)
    if memory is None:
        space = mmap.mmap(-1, ASIDE_BYTES + LARGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        prefer_large_pages(space)
        begin = -ctypes.addressof(ctypes.c_char.from_buffer(space)) % LARGE_PAGE_BYTES
        memory = _this_thread.memory = memoryview(space)[begin : begin + ASIDE_BYTES]
    return memory


def _begins_a_page(data: memoryview) -> bool:
    if data.readonly or not data.c_contiguous:
        # The address of memory that must not be written to is not told.
        return False
    return ctypes.addressof(ctypes.c_char.from_buffer(data)) % mmap.PAGESIZE == 0
