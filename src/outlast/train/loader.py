"""A few processes that fetch shards ahead of time.

The trainer says which shards it expects to load (`expect`), and up to `prefetch` of them are fetched while
it computes. An expectation is a hint and nothing more: `load` takes any shard at any time, since after a
failure a replica computes shards it never thought of, and what is no longer expected is dropped. A batch is
known by its whole name (step, shard, number of shards), so it is never taken for another one.

Bounded: at most `prefetch` shards are asked for and not yet loaded, beside one that `load` waits for and,
per worker, one dropped while it was being fetched.

There is no thread in the trainer for this. Answers wait in the pipes until the trainer looks, which it does
in `expect` and `load`. Asks are a few bytes, so sending one never waits for a worker that is busy answering.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any

import torch.multiprocessing

from outlast.errors import SampleFailed, WorkerDied
from outlast.kinship import ExitStatus
from outlast.train.fetch import Fetcher, ShardKey
from outlast.train.parcel import unpack
from outlast.train.worker import Ask, Begun, Drop, Dropped, Failed, Fetched, work

PREFETCH_MOST = 64
"""A pipe holds about 270 small messages, so this many asks, and as many drops, fit in front of one worker."""
CLOSE_WITHIN_S = 1.0
"""How long a worker may take to notice that it is no longer needed, before it is killed."""


class _Worker:
    """The trainer's side of one worker: its process, its pipe, and what it was asked for."""

    def __init__(self, index: int, fetcher: Fetcher, earlier: Iterable[_Worker]) -> None:
        self.index = index
        self.asked: dict[int, ShardKey] = {}
        self.dropped: set[int] = set()
        self.begun: int | None = None
        context = torch.multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        others: list[Connection] = [self.pipe, *(worker.pipe for worker in earlier)]
        self.process: ForkProcess = context.Process(
            target=work,
            name=f"data worker {index}",
            args=(fetcher, theirs, others),
            kwargs={
                "parent_pid": os.getpid(),
                "parent_is_main_thread": threading.current_thread() is threading.main_thread(),
                "index": index,
            },
            daemon=True,
        )
        self.process.start()
        theirs.close()

    def died(self, noticed_by: Exception | None = None) -> WorkerDied:
        """The error that tells how this worker ended, and over what."""
        # The end of a pipe may be seen a moment before the end of the process behind it.
        self.process.join(CLOSE_WITHIN_S)
        code = self.process.exitcode
        if code is None:
            how = f"is alive but cannot be heard ({noticed_by!r})"
        else:
            how = (ExitStatus(code, None) if code >= 0 else ExitStatus(None, -code)).describe()
        begun = self.asked.get(self.begun) if self.begun is not None else None
        if begun is not None:
            over = f"while it fetched {begun.describe()}"
        elif self.asked:
            over = f"before it began with {next(iter(self.asked.values())).describe()}"
        else:
            over = "while it had nothing to do"
        return WorkerDied(
            f"Data worker {self.index} (pid {self.process.pid}) {how} {over}. "
            "If this shard alone does it, look at its samples with num_workers=0."
        )


class Loader:
    """Owns the workers; used by one thread at a time. Workers start at once and end with `close`."""

    def __init__(self, fetcher: Fetcher, *, num_workers: int, prefetch: int) -> None:
        assert num_workers >= 1 and 1 <= prefetch <= PREFETCH_MOST
        self.owner_pid = os.getpid()
        self._prefetch = prefetch
        self._tickets = 0
        self._asked: dict[ShardKey, tuple[int, _Worker]] = {}
        self._answers: dict[ShardKey, Fetched | Failed] = {}
        self._expected: dict[ShardKey, None] = {}
        self._workers: list[_Worker] = []
        for index in range(num_workers):
            self._workers.append(_Worker(index, fetcher, self._workers))

    def expect(self, keys: Iterable[ShardKey]) -> None:
        """From now on expect these, soonest first, and nothing else."""
        # What lies beyond the bound is not fetched now, but as soon as something before it is loaded.
        self._expected = dict.fromkeys(keys)
        self._take_answers(timeout_s=0)
        wanted = set(itertools.islice(self._expected, self._prefetch))
        for key in [key for key in self._answers if key not in wanted]:
            del self._answers[key]
        for key in [key for key in self._asked if key not in wanted]:
            ticket, worker = self._asked.pop(key)
            worker.dropped.add(ticket)
            self._send(worker, Drop(ticket))
        self._ask_ahead()

    def load(self, key: ShardKey) -> Any:
        """The batch of this shard, fetched ahead or now."""
        self._expected.pop(key, None)
        if key not in self._asked and key not in self._answers:
            self._ask(key, urgent=True)
        while key not in self._answers:
            self._take_answers(timeout_s=None)
        answer = self._answers.pop(key)
        self._ask_ahead()
        if isinstance(answer, Failed):
            answer.cause.add_note(f"This happened in a data worker:\n{answer.trace}")
            raise SampleFailed(answer.message) from answer.cause
        return answer.batch

    def close(self) -> None:
        """End all workers, by force those that are in the middle of something; no process is left."""
        workers, self._workers = self._workers, []
        if os.getpid() != self.owner_pid:
            # A forked copy of the trainer: these are not its children.
            return
        for worker in workers:
            worker.pipe.close()
        until = time.monotonic() + CLOSE_WITHIN_S
        for worker in workers:
            worker.process.join(max(0.0, until - time.monotonic()))
            if worker.process.exitcode is None:
                worker.process.kill()
                worker.process.join()
            worker.process.close()

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers if worker.process.pid is not None]

    def _ask_ahead(self) -> None:
        for key in self._expected:
            full = len(self._asked) + len(self._answers) >= self._prefetch
            # A worker that is stuck in one sample collects asks that were dropped, as long as it is stuck.
            if full or len(self._idlest().asked) >= PREFETCH_MOST:
                return
            if key not in self._asked and key not in self._answers:
                self._ask(key, urgent=False)

    def _ask(self, key: ShardKey, *, urgent: bool) -> None:
        self._tickets += 1
        worker = self._idlest()
        worker.asked[self._tickets] = key
        self._asked[key] = (self._tickets, worker)
        self._send(worker, Ask(self._tickets, key, urgent))

    def _idlest(self) -> _Worker:
        return min(self._workers, key=lambda worker: len(worker.asked))

    def _send(self, worker: _Worker, message: Ask | Drop) -> None:
        try:
            worker.pipe.send(message)
        except OSError as error:
            self._take_last_words(worker)
            raise worker.died(error) from error

    def _take_answers(self, timeout_s: float | None) -> None:
        """Take in all that has arrived; wait for something if nothing has, and find out who died."""
        pipes = {worker.pipe: worker for worker in self._workers}
        ends = {worker.process.sentinel: worker for worker in self._workers}
        for ready in wait([*pipes, *ends], timeout_s):
            if isinstance(ready, int):
                self._take_last_words(ends[ready])
                raise ends[ready].died()
            assert isinstance(ready, Connection)
            worker = pipes[ready]
            try:
                while worker.pipe.poll():
                    self._take(worker, unpack(worker.pipe.recv_bytes()))
            except (EOFError, OSError) as error:
                raise worker.died(error) from error

    def _take_last_words(self, worker: _Worker) -> None:
        # Only for what it had begun with: a batch whose memory died with the worker cannot be taken in.
        try:
            while worker.pipe.poll():
                self._take(worker, unpack(worker.pipe.recv_bytes()))
        except (EOFError, OSError):
            return

    def _take(self, worker: _Worker, message: Begun | Dropped | Fetched | Failed) -> None:
        if isinstance(message, Begun):
            worker.begun = message.ticket
            return
        key = worker.asked.pop(message.ticket)
        if isinstance(message, Dropped):
            worker.dropped.remove(message.ticket)
            return
        worker.begun = None
        if message.ticket in worker.dropped:
            worker.dropped.remove(message.ticket)
            return
        del self._asked[key]
        self._answers[key] = message
