"""Large pages, where the system has them: asking for every 4 KiB of memory by itself takes several times as
long as filling it, and a disk that reads straight into scattered small pages gets as many small requests."""

import contextlib
import mmap


def prefer_large_pages(memory: mmap.mmap) -> None:
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
