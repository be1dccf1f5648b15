import json
from pathlib import Path

import pytest

from bench.paces import Paces

SECOND_NS = 1_000_000_000


def write(directory: Path, replica: int, second: float, **entry: object) -> None:
    line = {"at_ns": int(second * SECOND_NS), "pid": 100 + replica, **entry}
    with (directory / f"replica-{replica}.steps").open("a") as file:
        file.write(json.dumps(line) + "\n")


def step(directory: Path, replica: int, second: float, number: int, **entry: object) -> None:
    write(directory, replica, second, **{"step": number, "shards": 1, "members": 2, **entry})


def read(directory: Path) -> Paces:
    paces = Paces(directory)
    paces.read()
    return paces


def test_a_line_is_read_once_and_only_when_it_is_whole(tmp_path: Path) -> None:
    step(tmp_path, 0, 1, 1)
    with (tmp_path / "replica-0.steps").open("a") as file:
        file.write('{"at_ns": 2')
    paces = read(tmp_path)
    paces.read()
    assert [done.step for done in paces.done[0]] == [1]


def test_what_a_killed_process_left_half_written_is_skipped(tmp_path: Path) -> None:
    with (tmp_path / "replica-0.steps").open("a") as file:
        file.write('{"at_ns": 2')
    step(tmp_path, 0, 3, 7)
    assert [done.step for done in read(tmp_path).done[0]] == [7]


def test_all_take_part_when_the_last_one_computes_shards(tmp_path: Path) -> None:
    step(tmp_path, 0, 1, 1)
    assert not read(tmp_path).complete(2)
    step(tmp_path, 1, 1, 1, shards=0)
    assert not read(tmp_path).complete(2)
    step(tmp_path, 1, 2, 2)
    assert read(tmp_path).complete(2)


def test_only_a_step_of_the_smaller_job_counts_as_recovery(tmp_path: Path) -> None:
    step(tmp_path, 0, 1.0, 1)
    step(tmp_path, 0, 2.1, 2)
    step(tmp_path, 0, 2.5, 3, members=1)
    step(tmp_path, 1, 3.0, 3, members=1)
    assert read(tmp_path).first_without(2 * SECOND_NS, 1, 2) == {0: int(2.5 * SECOND_NS)}


def test_gaps_are_between_steps_of_one_process(tmp_path: Path) -> None:
    step(tmp_path, 0, 1.0, 1)
    step(tmp_path, 0, 1.5, 2)
    step(tmp_path, 0, 9.0, 8, pid=7)
    step(tmp_path, 0, 9.25, 9, pid=7)
    paces = read(tmp_path)
    assert paces.gaps_s(0, 0, 10 * SECOND_NS) == pytest.approx([0.5, 0.25])
    assert paces.gaps_s(0, 2 * SECOND_NS, 10 * SECOND_NS) == pytest.approx([0.25])
    assert paces.lives() == {0: 2}


def test_joining_and_the_state_that_comes_are_told_from_steps(tmp_path: Path) -> None:
    write(tmp_path, 0, 1.0, joining=True)
    write(tmp_path, 0, 2.0, size_bytes=400, took_s=0.5)
    paces = read(tmp_path)
    assert paces.done == {}
    assert paces.joining_at_ns == {100: SECOND_NS}
    assert (paces.arrived[0][0].size_bytes, paces.arrived[0][0].took_s) == (400, 0.5)


def test_a_wait_that_is_too_long_tells_how_far_everybody_is(tmp_path: Path) -> None:
    step(tmp_path, 0, 1, 12)
    with pytest.raises(TimeoutError, match="step=12"):
        Paces(tmp_path).wait_for("all take part", lambda: False, timeout_s=0)
