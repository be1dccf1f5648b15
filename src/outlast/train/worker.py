"""A loading process: takes the names of shards from a pipe, and answers with their batches.

It is forked from the trainer, so it has the dataset without a copy being sent, and it has one pipe of its own
for both directions. Nothing is shared among workers: a lock or a queue in common would stay locked for ever
when a worker is killed while it holds it.

A worker ends with its trainer, twice over: the kernel kills it, and its pipe comes to an end.
"""

from __future__ import annotations

import collections
import contextlib
import signal
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch

from outlast.errors import SampleFailed
from outlast.kinship import die_with_parent, restore_signals, set_name
from outlast.train.fetch import Fetcher, ShardKey
from outlast.train.parcel import pack, unpack


class Ask(NamedTuple):
    """Trainer to worker: fetch this. What is urgent is waited for, and goes before all that is not."""

    ticket: int
    key: ShardKey
    urgent: bool


class Drop(NamedTuple):
    """Trainer to worker: no longer wanted, if it has not begun. Asks and drops arrive in order."""

    ticket: int


class Dropped(NamedTuple):
    """Worker to trainer: it had not begun, and will not. What had begun is answered all the same."""

    ticket: int


class Begun(NamedTuple):
    """Worker to trainer: so that, if this worker dies now, it is known over what."""

    ticket: int


class Fetched(NamedTuple):
    ticket: int
    batch: Any


class Failed(NamedTuple):
    """Worker to trainer: the shard could not be fetched; why, and the original error if it can travel."""

    ticket: int
    message: str
    cause: Exception
    trace: str


class RemoteError(Exception):
    """Stands for an error in a worker that cannot be sent from one process to another."""


def work(
    fetcher: Fetcher,
    pipe: Connection,
    others: list[Connection],
    *,
    parent_pid: int,
    parent_is_main_thread: bool,
    index: int,
) -> None:
    """The life of a worker process."""
    # The kernel means the *thread* that forked us when it says parent. Any thread but the main one may end
    # long before its process, and then only the end of the pipe tells.
    if parent_is_main_thread:
        die_with_parent(parent_pid)
    # The trainer's ends of all pipes were inherited. As long as they are open here, no pipe comes to an end.
    for end in others:
        end.close()
    restore_signals()
    # Ctrl-C reaches the whole process group; it is the trainer who decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_name(f"data-{index}")
    # One thread each, as the workers are many; also, a forked child must not use the parent's thread pool.
    torch.set_num_threads(1)
    threading.current_thread().name = f"data-{index}"
    with contextlib.suppress(EOFError, OSError):
        _serve(fetcher, pipe)


def _serve(fetcher: Fetcher, pipe: Connection) -> None:
    queue: collections.deque[Ask] = collections.deque()
    while True:
        # Take in all there is before choosing, so that an urgent ask or a drop counts at once.
        while not queue or pipe.poll():
            message = pipe.recv()
            if isinstance(message, Drop):
                kept = [ask for ask in queue if ask.ticket != message.ticket]
                if len(kept) < len(queue):
                    queue = collections.deque(kept)
                    pipe.send(Dropped(message.ticket))
            elif message.urgent:
                queue.appendleft(message)
            else:
                queue.append(message)
        ask = queue.popleft()
        pipe.send(Begun(ask.ticket))
        pipe.send_bytes(_answer(fetcher, ask))


def _answer(fetcher: Fetcher, ask: Ask) -> memoryview:
    try:
        batch = fetcher.fetch(ask.key)
    except SampleFailed as error:
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        return _failure(ask.ticket, str(error), cause)
    try:
        return pack(Fetched(ask.ticket, batch))
    except Exception as error:
        what = "the batch cannot be sent from a worker to the trainer"
        hint = "Let collate_fn return tensors and plain values, or use num_workers=0."
        message = f"At {ask.key.describe()}: {what}: {type(error).__name__}: {error}. {hint}"
        return _failure(ask.ticket, message, error)


def _failure(ticket: int, message: str, cause: Exception) -> memoryview:
    trace = "".join(traceback.format_exception(cause))
    try:
        # Errors with an `__init__` of their own often cannot be rebuilt from what they carry. Find out here.
        answer = pack(Failed(ticket, message, cause, trace))
        unpack(answer)
    except Exception:
        stand_in = RemoteError(f"{type(cause).__qualname__}: {cause}")
        answer = pack(Failed(ticket, message, stand_in, trace))
    return answer
