"""Each machine of a job has a directory of its own, and takes part once."""

import os
from pathlib import Path

import msgspec
import pytest

from outlast.errors import UsageError
from outlast.protocol.views import JobSpec
from outlast.run.machine import Machine
from outlast.run.options import Options
from outlast.run.preparing import prepare, refuse_twice
from outlast.wire.rundir import Reach, RunDirectory
from outlast.wire.ticket import Ticket

SPEC = JobSpec(name="job", replicas=2, shards=2, per_machine=1)


def options(base: Path, byte: str = "ab") -> Options:
    ticket = Ticket(
        outlast="1",
        spec=SPEC,
        token=byte * 32,
        store="etcd://127.0.0.1:2379/jobs",
        coordinators=("127.0.0.1:7700",),
        argv=("train.py",),
        digest="",
        working_directory="/work",
    )
    machine = Machine(name="rack-7", ticket=ticket, reach=Reach(), coordinator=0)
    return Options(argv=("train.py",), replicas=2, base=base, machine=machine)


def test_a_machine_has_what_the_ticket_says(tmp_path: Path) -> None:
    given = options(tmp_path)
    directory = prepare(given, SPEC, [])
    assert given.machine is not None
    assert directory.token() == given.machine.ticket.secret
    assert directory.read().addresses == ("127.0.0.1:7700",)


def test_one_that_takes_part_once_more_keeps_its_directory(tmp_path: Path) -> None:
    directory = prepare(options(tmp_path), SPEC, [])
    (directory.path / "mark").write_text("here")
    again = prepare(options(tmp_path), SPEC, [])
    assert again.path == directory.path and (again.path / "mark").exists()


def test_another_job_of_that_name_is_put_beside_it(tmp_path: Path) -> None:
    one, other = prepare(options(tmp_path), SPEC, []), prepare(options(tmp_path, "cd"), SPEC, [])
    assert other.path != one.path and other.name.startswith("job-")
    assert other.token() != one.token()
    assert prepare(options(tmp_path), SPEC, []).path == one.path


def test_a_machine_takes_part_once(tmp_path: Path) -> None:
    given = options(tmp_path)
    assert given.machine is not None
    refuse_twice(given.machine, tmp_path)
    directory = prepare(given, SPEC, [])
    with pytest.raises(UsageError, match=rf"rack-7 takes part in job already \(process {os.getpid()}\)"):
        refuse_twice(given.machine, tmp_path)
    over = msgspec.structs.replace(directory.read(), launcher_started=1)
    RunDirectory(directory.path).renew(over)
    refuse_twice(given.machine, tmp_path)
