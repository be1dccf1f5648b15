"""The progress page: what one process writes, another reads, whole and at no cost to the writer."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from outlast.errors import ProtocolError
from outlast.protocol.messages import Phase
from outlast.wire import progress
from outlast.wire.progress import Progress, ProgressReader, Reading


@pytest.fixture
def page(tmp_path: Path) -> Path:
    return tmp_path / "replica-0.progress"


def test_a_fresh_page_reads_as_starting(page: Path) -> None:
    before_ns = time.monotonic_ns()
    reader = ProgressReader.create(page)
    reading = reader.read()
    assert (reading.pid, reading.incarnation, reading.step, reading.phase) == (0, 0, 0, Phase.STARTING)
    assert before_ns <= reading.changed_ns <= time.monotonic_ns()
    assert os.listdir(page.parent) == [page.name]
    reader.close()


def test_steps_and_phases_are_seen_by_the_reader(page: Path) -> None:
    reader = ProgressReader.create(page)
    writer = Progress.open(page)
    writer.live(1)
    writer.adopt(7, lambda: 50)
    writer.enter(Phase.COMPUTING, lambda: 100)
    writer.advance(41, lambda: 2_000_000_100)
    writer.tick()
    assert reader.read() == Reading(os.getpid(), 1, 7, 41, Phase.COMPUTING, 2_000_000_100, alive=5)
    assert reader.read().unchanged_s(2_500_000_100) == 0.5
    writer.enter(Phase.DONE)
    assert reader.read().phase is Phase.DONE
    writer.close()
    reader.close()


def test_the_shard_that_is_being_computed_is_a_word_by_itself(page: Path) -> None:
    writer = Progress.create(page)
    reader = ProgressReader(page)
    before = reader.read()
    assert before.shard == -1
    writer.computing(0)
    assert reader.read().shard == 0
    writer.computing(65535)
    after = reader.read()
    assert after.shard == 65535
    assert (after.changed_ns, after.alive) == (before.changed_ns, before.alive)
    writer.computing(None)
    assert reader.read() == before
    writer.close()
    reader.close()


def test_a_request_to_leave_reaches_the_replica(page: Path) -> None:
    writer = Progress.create(page)
    reader = ProgressReader(page)
    assert not writer.leave_requested
    reader.request_leave()
    assert writer.leave_requested
    writer.close()
    reader.close()


def test_a_new_page_does_not_disturb_who_has_the_old_one(page: Path) -> None:
    old = Progress.create(page)
    reader = ProgressReader.create(page)
    old.advance(7)
    assert reader.read().step == 0
    old.close()
    reader.close()


def test_a_writer_that_died_in_the_middle_is_still_read(page: Path) -> None:
    writer = Progress.create(page)
    reader = ProgressReader(page)
    writer.advance(5)
    writer._words[progress._SEQUENCE] += 1
    writer._words[progress._STEP] = 6
    assert (reader.read().step, reader.read().consistent) == (6, False)
    writer.close()
    reader.close()


def test_what_is_no_page_is_refused(page: Path) -> None:
    page.write_bytes(b"short")
    with pytest.raises(ProtocolError, match="it has 5 bytes"):
        ProgressReader(page)
    page.write_bytes(bytes(progress.PAGE_BYTES))
    with pytest.raises(ProtocolError, match="no progress page of version 2"):
        Progress.open(page)
    ProgressReader.create(page).close()
    data = bytearray(page.read_bytes())
    data[8 * progress._PHASE] = 99
    page.write_bytes(data)
    reader = ProgressReader(page)
    with pytest.raises(ProtocolError, match="unknown phase 99"):
        reader.read()
    reader.close()


WRITER = """
import sys
from pathlib import Path
from outlast.protocol.messages import Phase
from outlast.wire.progress import Progress
page = Progress.open(Path(sys.argv[1]))
step = 0
while not page.leave_requested:
    step += 1
    page.advance(step, lambda: step * 1000)
page.enter(Phase.DONE)
"""


def test_readings_of_a_busy_writer_are_consistent(page: Path) -> None:
    reader = ProgressReader.create(page)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(page)])
    try:
        steps = set()
        deadline = time.monotonic() + 60
        while len(steps) < 1000 and time.monotonic() < deadline:
            reading = reader.read()
            if reading.consistent and reading.step:
                assert reading.changed_ns == reading.step * 1000
                assert reading.alive == reading.step + 1
                assert reading.pid == writer.pid
                steps.add(reading.step)
        assert len(steps) == 1000
        reader.request_leave()
        assert writer.wait(timeout=60) == 0
        assert reader.read().phase is Phase.DONE
    finally:
        writer.kill()
        writer.wait()
        reader.close()
