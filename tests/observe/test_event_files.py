"""Files of events: private, bounded, whole lines, and read again as they were written."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
from event_lines import line, step

from outlast.observe import files
from outlast.observe.files import EventFile, open_events
from outlast.observe.reading import EventLog
from outlast.observe.written import Written
from outlast.protocol import events
from outlast.wire.rundir import RunDirectory


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    return RunDirectory(path)


def steps(run: RunDirectory) -> list[int]:
    with EventLog(run.path) as log:
        found = [entry.written.event for entry in log.read_all()]
    return [event.step for event in found if isinstance(event, events.Step)]


def lines(*numbers: int, source: str = "replica-0") -> list[Written]:
    return [line(source, step(number)) for number in numbers]


def test_files_are_for_their_owner_alone(run: RunDirectory) -> None:
    before = os.umask(0)
    try:
        with open_events(run, "replica-0") as told:
            told.emit(step(1))
    finally:
        os.umask(before)
    path = run.path / "events" / "replica-0.jsonl"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert steps(run) == [1]


def test_nothing_is_made_before_there_is_something_to_tell(run: RunDirectory) -> None:
    open_events(run, "replica-0").close()
    assert not (run.path / "events").exists()


def test_the_next_process_appends_and_a_torn_line_is_left_out(run: RunDirectory) -> None:
    first = EventFile(run, "replica-0")
    first.write(lines(1, 2))
    first.close()
    path = run.path / "events" / "replica-0.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert steps(run) == [1]
    second = EventFile(run, "replica-0")
    second.write(lines(3))
    second.close()
    assert steps(run) == [1, 3]


def test_files_are_put_aside_and_bounded(run: RunDirectory) -> None:
    file = EventFile(run, "replica-0", file_most_bytes=2000, files_most=3)
    other = EventFile(run, "replica-01")
    other.write(lines(7, source="replica-01"))
    for number in range(100):
        file.write(lines(number))
    file.close()
    other.close()
    found = list((run.path / "events").glob("replica-0.*"))
    assert len(found) == 3
    assert all(path.stat().st_size < 2500 for path in found)
    kept = [number for number in steps(run) if number != 7]
    assert kept == list(range(kept[0], 100))
    assert 15 < len(kept) < 60


def test_a_follower_reads_each_event_once_though_files_are_put_aside(run: RunDirectory) -> None:
    file = EventFile(run, "replica-0", file_most_bytes=2000, files_most=3)
    seen: list[int] = []
    with EventLog(run.path) as log:
        for number in range(200):
            file.write(lines(number))
            if number % 7 == 0:
                seen += [entry.written.event.step for entry in log.read_settled()]  # type: ignore[union-attr]
        file.close()
        seen += [entry.written.event.step for entry in log.read_all()]  # type: ignore[union-attr]
    assert seen == list(range(200))


def test_a_full_disk_costs_events_and_says_how_many(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = EventFile(run, "replica-0")
    file.write(lines(0))
    monkeypatch.setattr(files, "WAITING_MOST_BYTES", 500)
    real, full = os.write, [True]

    def write(fd: int, data: bytes) -> int:
        if full[0]:
            full[0] = False
            return real(fd, data[:50])
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as short:
        short.setattr(os, "write", write)
        for number in range(1, 21):
            file.write(lines(number))
    file.write(lines(21))
    file.write(lines(22))
    file.close()
    with EventLog(run.path) as log:
        found = [entry.written for entry in log.read_all()]
    told = [one.event.step for one in found if isinstance(one.event, events.Step)]
    kept = told[:-1]
    assert kept == list(range(len(kept)))
    assert told[-1] == 22
    assert sum(one.dropped for one in found) == 22 - len(kept) == found[-1].dropped


def test_what_is_no_text_is_left_out_and_counted(run: RunDirectory) -> None:
    odd = line("replica-0", events.ConnectionLost(peer=1, cause="\udcff"))
    file = EventFile(run, "replica-0")
    file.write([*lines(1), odd, odd, *lines(2)])
    file.write([odd])
    file.write(lines(3))
    file.close()
    with EventLog(run.path) as log:
        assert [entry.written.dropped for entry in log.read_all()] == [0, 2, 1]


def test_another_directory_in_place_of_the_runs_own_is_not_written_to(run: RunDirectory) -> None:
    with run.held():
        run.path.rename(run.path.with_name("elsewhere"))
        run.path.mkdir(mode=0o700)
        file = EventFile(run, "replica-0")
        file.write(lines(1))
        file.close()
    assert list(run.path.iterdir()) == []


def test_events_of_several_are_merged_by_time_and_in_order_within_each(run: RunDirectory) -> None:
    ours, theirs = lines(1, 2), lines(3, source="agent-0")
    jumped = Written(time=0.5, monotonic=9.0, source="replica-0", pid=1, event=step(4))
    one, two = EventFile(run, "replica-0"), EventFile(run, "agent-0")
    two.write(theirs)
    one.write([*ours, jumped])
    one.close()
    two.close()
    assert steps(run) == [1, 2, 4, 3], "the wall clock was set back, and what came after did so"


def test_what_a_newer_version_writes_is_read_as_far_as_it_is_understood(run: RunDirectory) -> None:
    file = EventFile(run, "replica-0")
    file.write(lines(1))
    file.close()
    path = run.path / "events" / "replica-0.jsonl"
    newer = path.read_bytes().replace(b'"step":1', b'"step":2,"colour":"red"')
    odd = newer.replace(b'"kind":"step"', b'"kind":"daydream"')
    with path.open("ab") as append:
        append.write(newer + odd + b'{"half": 1}\n\n\xff\n[]\n')
    with EventLog(run.path) as log:
        found = [entry.written.event for entry in log.read_all()]
    assert [getattr(event, "step", None) for event in found] == [1, 2, None]
    assert found[2].what == "daydream"  # type: ignore[union-attr]
