import json
from pathlib import Path

import pytest

from bench.traces import Traces


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path


def write(
    directory: Path, replica: int, at_ns: int, view: int, lives: dict[int, int], pid: int = 100
) -> None:
    entry = {
        "at_ns": at_ns,
        "view": view,
        "members": list(lives),
        "lives": list(lives.values()),
        "cause": "",
        "pid": pid + replica,
    }
    with (directory / f"replica-{replica}.trace").open("a") as file:
        file.write(json.dumps(entry) + "\n")


def read(directory: Path) -> Traces:
    traces = Traces(directory)
    traces.read()
    return traces


def test_a_line_is_read_once_and_only_when_it_is_whole(directory: Path) -> None:
    write(directory, 0, 1, 1, {0: 1})
    with (directory / "replica-0.trace").open("a") as file:
        file.write('{"at_ns": 2')
    traces = read(directory)
    traces.read()
    assert [adoption.view for adoption in traces.adoptions] == [1]


def test_all_are_in_one_view_once_the_last_one_knows(directory: Path) -> None:
    write(directory, 0, 1, 1, {0: 1, 1: 1})
    assert not read(directory).all_in_one_view(2)
    write(directory, 1, 2, 1, {0: 1, 1: 1})
    assert read(directory).all_in_one_view(2)


def test_the_first_view_without_the_victims_life_counts(directory: Path) -> None:
    for replica in range(3):
        write(directory, replica, 1, 1, {0: 1, 1: 1, 2: 1})
    victim = read(directory).newest[2]
    write(directory, 0, 20, 2, {0: 1, 1: 1})
    write(directory, 1, 25, 3, {0: 1, 1: 1, 2: 2})
    write(directory, 2, 26, 3, {0: 1, 1: 1, 2: 2})
    write(directory, 0, 27, 3, {0: 1, 1: 1, 2: 2})
    assert read(directory).adopted_without(victim, 10) == {0: 20, 1: 25}


def test_a_new_life_in_the_next_view_is_a_removal_of_the_old_one(directory: Path) -> None:
    write(directory, 0, 1, 1, {0: 1, 1: 1})
    write(directory, 1, 1, 1, {0: 1, 1: 1})
    write(directory, 0, 2, 2, {0: 1, 1: 2})
    assert read(directory).removals() == 1


def test_joining_is_no_removal(directory: Path) -> None:
    write(directory, 0, 1, 1, {0: 1})
    write(directory, 0, 2, 2, {0: 1, 1: 1})
    assert read(directory).removals() == 0


def test_numbers_that_were_reused_skipped_or_went_back_are_counted(directory: Path) -> None:
    write(directory, 0, 1, 1, {0: 1})
    write(directory, 1, 1, 1, {0: 1, 1: 1})
    write(directory, 0, 2, 3, {0: 1})
    write(directory, 0, 3, 2, {0: 1})
    write(directory, 0, 4, 5, {0: 1})
    traces = read(directory)
    assert (traces.reused(), traces.skipped(), traces.backwards()) == (1, 1, 1)


def test_lives_are_counted_by_process_and_incarnation(directory: Path) -> None:
    write(directory, 0, 1, 1, {0: 1})
    write(directory, 0, 2, 2, {0: 1})
    write(directory, 0, 3, 3, {0: 2})
    write(directory, 0, 4, 4, {0: 3}, pid=200)
    assert read(directory).own_lives() == {0: 3}
