"""The progress page: what one process writes, another reads, whole and at no cost to the writer."""

from __future__ import annotations

import math
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
from patience import PATIENCE_S


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


def test_who_is_done_is_done_for_good(page: Path) -> None:
    writer = Progress.create(page)
    reader = ProgressReader(page)
    writer.enter(Phase.DONE)
    writer.enter(Phase.ASIDE)
    assert reader.read().phase is Phase.DONE
    again = Progress.open(page)
    again.enter(Phase.COMPUTING)
    assert reader.read().phase is Phase.DONE
    for side in (writer, again, reader):
        side.close()


def test_what_a_process_has_had_part_in_stays_on_its_page(page: Path) -> None:
    writer = Progress.create(page)
    reader = ProgressReader(page)
    assert (reader.read().joined, reader.read().contributed) == (False, 0)
    writer.join()
    writer.live(3)
    writer.contribute(17)
    # Evicted, it begins anew and does steps again that were undone.
    writer.live(0)
    writer.contribute(12)
    assert (reader.read().joined, reader.read().contributed) == (True, 17)
    writer.close()
    reader.close()


def test_what_is_told_for_people(page: Path) -> None:
    writer = Progress.create(page)
    reader = ProgressReader(page)
    fresh = reader.read()
    assert (fresh.total, fresh.loss, fresh.samples, fresh.saved, fresh.place) == (0, None, 0, -1, "")
    writer.expect(1500, 128)
    writer.tell_loss(0.25)
    writer.saves_to("s3://bucket/run-é")
    told = reader.read()
    assert (told.total, told.loss, told.samples, told.saved) == (1500, 0.25, 128, -1)
    assert told.place == "s3://bucket/run-é"
    assert told.changed_ns == fresh.changed_ns, "none of it is progress"
    writer.tell_loss(0.0)
    assert reader.read().loss == 0.0
    assert math.copysign(1, reader.read().loss or 0.0) == 1
    writer.tell_loss(math.nan)
    assert math.isnan(reader.read().loss or 0.0)
    writer.saved(0, 17)
    assert (reader.read().saved, reader.read().saved_ns) == (0, 17)
    writer.saved(-1, 0)
    assert reader.read().saved == -1
    writer.saves_to("x" * 5000)
    assert reader.read().place == "x" * progress.PLACE_MOST_BYTES
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
    with pytest.raises(ProtocolError, match="no progress page of version 4"):
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
        deadline = time.monotonic() + PATIENCE_S
        while len(steps) < 1000 and time.monotonic() < deadline:
            reading = reader.read()
            if reading.consistent and reading.step:
                assert reading.changed_ns == reading.step * 1000
                assert reading.alive == reading.step + 1
                assert reading.pid == writer.pid
                steps.add(reading.step)
        assert len(steps) == 1000
        reader.request_leave()
        assert writer.wait(timeout=PATIENCE_S) == 0
        assert reader.read().phase is Phase.DONE
    finally:
        writer.kill()
        writer.wait()
        reader.close()
