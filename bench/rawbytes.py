"""What a machine can do with so many bytes with nothing to it: copy, write, read and send them.

The yardsticks of `bench checkpoint`. Memory that is written to has been written to before, files are new, and
what is read comes from the disk as far as the system lets go of what it has in memory.
"""

import ctypes
import mmap
import os
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

BLOCK_BYTES = 8 << 20


class Copied:
    """A plain `memcpy` of tensors, one after the other."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._targets = [torch.zeros_like(tensor) for tensor in tensors]

    def seconds(self, tensors: Sequence[Tensor]) -> float:
        begin = time.perf_counter()
        for target, source in zip(self._targets, tensors, strict=True):
            ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes)
        return time.perf_counter() - begin


def dcp_blocks_s(state: dict[str, Any], folder: Path) -> float:
    """How long torch's own asynchronous save holds its caller."""
    # It takes a second to import, and only one of the programs that need this file saves with it.
    from torch.distributed.checkpoint.state_dict_saver import async_save

    begin = time.perf_counter()
    saving = async_save(state, checkpoint_id=str(folder), no_dist=True)
    blocked_s = time.perf_counter() - begin
    assert isinstance(saving, Future)
    saving.result()
    shutil.rmtree(folder)
    return blocked_s


def write_s(path: Path, memory: memoryview) -> float:
    """One new file from beginning to end, durable."""
    begin = time.perf_counter()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        for lo in range(0, len(memory), BLOCK_BYTES):
            block = memory[lo : lo + BLOCK_BYTES]
            while block:
                block = block[os.write(file, block) :]
        os.fsync(file)
    finally:
        os.close(file)
    return time.perf_counter() - begin


def read_s(path: Path) -> float:
    """One file from beginning to end into fresh memory."""
    begin = time.perf_counter()
    file = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(file).st_size
        with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            with memoryview(memory) as view:
                done = 0
                while done < size:
                    done += os.preadv(file, [view[done : done + BLOCK_BYTES]], done)
            return time.perf_counter() - begin
    finally:
        os.close(file)


def forget(folder: Path) -> None:
    """Let the system forget what it holds in memory of the files below this folder."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def send_s(client: Any, prefix: str, memory: memoryview, object_bytes: int, threads: int) -> float:
    """The same bytes in objects of one size to an object store, some at a time."""
    import obstore

    def put(lo: int) -> None:
        obstore.put(client, f"{prefix}/{lo}", bytes(memory[lo : lo + object_bytes]))

    begin = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(put, range(0, len(memory), object_bytes)):
            pass
    took_s = time.perf_counter() - begin
    obstore.delete(client, [f"{prefix}/{lo}" for lo in range(0, len(memory), object_bytes)])
    return took_s
