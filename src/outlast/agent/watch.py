"""What an agent sees of its replicas: progress pages and the kernel's own books.

Two things keep load from looking like a hang. Time in which the replica's main thread was ready to run, but
the machine gave it no CPU, is taken off its quiet time; the kernel counts that for us. And a replica that
has been stopped by a signal is reported as stopped, not as slow.
"""

import contextlib
import time
from pathlib import Path

from outlast.errors import ProtocolError
from outlast.kinship import run_delay_s, stopped
from outlast.protocol.supervision import Sample
from outlast.wire.progress import ProgressReader


def last_sample(page: Path) -> Sample:
    """What the page of a process that is gone said last."""
    try:
        reader = ProgressReader(page)
    except (OSError, ProtocolError):
        return Sample()
    try:
        reading = reader.read()
    except ProtocolError:
        return Sample()
    finally:
        reader.close()
    return Sample(
        pid=reading.pid,
        incarnation=reading.incarnation,
        view=reading.view,
        step=reading.step,
        phase=reading.phase,
        shard=reading.shard,
        joined=reading.joined,
        contributed=reading.contributed,
        ended=reading.ended,
        closes=reading.closes,
    )


class ReplicaWatch:
    """One process under observation."""

    def __init__(self, page: Path) -> None:
        self._reader = ProgressReader.create(page)
        self._pid: int | None = None
        self._changed_ns = -1
        self._starved_before_s = 0.0
        self._stopped_since: float | None = None

    def born(self, pid: int) -> None:
        self._pid = pid
        self._reader.born(pid)

    def request_leave(self) -> None:
        self._reader.request_leave()

    def sample(self) -> Sample:
        try:
            reading = self._reader.read()
        except ProtocolError:
            # A page that makes no sense is no reason to stop watching; it shows no progress, and that counts.
            return Sample()
        now_ns = time.monotonic_ns()
        quiet_s = reading.unchanged_s(now_ns)
        starved_s = self._starved_s()
        if reading.changed_ns != self._changed_ns:
            self._changed_ns = reading.changed_ns
            self._starved_before_s = starved_s
        return Sample(
            pid=self._pid or 0,
            incarnation=reading.incarnation,
            view=reading.view,
            step=reading.step,
            phase=reading.phase,
            quiet_s=max(0.0, quiet_s - (starved_s - self._starved_before_s)),
            stopped_s=self._stopped_s(),
            shard=reading.shard,
            joined=reading.joined,
            contributed=reading.contributed,
            ended=reading.ended,
            closes=reading.closes,
            total=reading.total,
            loss=reading.loss,
            samples=reading.samples,
            saves=bool(reading.place),
            saved=reading.saved,
            saved_ago_s=(now_ns - reading.saved_ns) / 1e9 if reading.saved_ns else None,
        )

    def close(self) -> None:
        with contextlib.suppress(BufferError):
            self._reader.close()

    def _starved_s(self) -> float:
        delay = run_delay_s(self._pid) if self._pid is not None else None
        return delay if delay is not None else self._starved_before_s

    def _stopped_s(self) -> float:
        if self._pid is None or not stopped(self._pid):
            self._stopped_since = None
            return 0.0
        now = time.monotonic()
        if self._stopped_since is None:
            self._stopped_since = now
        # Seen stopped for the first time is stopped all the same.
        return max(now - self._stopped_since, 1e-6)
