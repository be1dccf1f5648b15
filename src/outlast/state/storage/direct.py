"""Writing large files without the system's copy of them in memory.

What is written to a file goes into the page cache first: the system finds a page for every 4 KiB, copies, and
has somebody else bring it to the disk, all of which takes CPU time from training. An object that is made
durable before anybody goes on gains nothing by that, and nobody is about to read it. So the bytes go to the
disk straight from where they lie (`O_DIRECT`), wherever the file system can do that.

It can only where memory and file are aligned to pages. What is not, the rest of a page at the end, goes the
usual way. What does not support it at all says so at once, and is written the usual way, too.
"""

import ctypes
import errno
import fcntl
import mmap
import os

WORTH_IT_BYTES = 256 << 10
"""Smaller ones take longer to wait for than to copy."""
PIECE_BYTES = 64 << 20
_UNABLE = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})


def write_around_cache(file: int, data: memoryview) -> int:
    """Write the beginning of `data` to an empty file opened for writing, as much of it as can be written that
    way; how much it was. The file goes on behind that with ordinary writes."""
    if not hasattr(os, "O_DIRECT") or len(data) < WORTH_IT_BYTES or not _begins_a_page(data):
        return 0
    whole = len(data) // mmap.PAGESIZE * mmap.PAGESIZE
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    done = 0
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, flags | os.O_DIRECT)
        # A disk that is nearly full may take a piece that ends anywhere.
        while done < whole and done % mmap.PAGESIZE == 0:
            done += os.write(file, data[done : min(done + PIECE_BYTES, whole)])
    except OSError as error:
        if error.errno not in _UNABLE:
            raise
    finally:
        fcntl.fcntl(file, fcntl.F_SETFL, flags)
    return done


def _begins_a_page(data: memoryview) -> bool:
    if data.readonly or not data.c_contiguous:
        # The address of memory that must not be written to is not told.
        return False
    return ctypes.addressof(ctypes.c_char.from_buffer(data)) % mmap.PAGESIZE == 0
