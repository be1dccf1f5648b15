"""A ticket is for its owner alone, and says what is wrong with it before anything begins."""

import os
from importlib.metadata import version
from pathlib import Path

import msgspec
import pytest

from outlast.errors import ConfigError
from outlast.protocol.views import JobSpec
from outlast.wire.ticket import Ticket, digest_of, read_ticket


def ticket(**changes: object) -> Ticket:
    made = Ticket(
        outlast=version("outlast"),
        spec=JobSpec(name="job", replicas=4, shards=4, per_machine=2),
        token="ab" * 32,
        store="etcd://10.0.0.1:2379/jobs/job-1",
        coordinators=("10.0.0.1:7700",),
        argv=("train.py",),
        digest="",
        working_directory="/work",
    )
    return msgspec.structs.replace(made, **changes)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "job.ticket"
    ticket().write(path)
    assert read_ticket(path) == ticket()
    assert path.stat().st_mode & 0o777 == 0o600


def test_one_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.ticket"
    ticket().write(path)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=r"accessible to others \(mode 0640\).*chmod 600"):
        read_ticket(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_one_that_belongs_to_somebody_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.ticket"
    ticket().write(path)
    os.chown(path, 12345, -1)
    with pytest.raises(ConfigError, match="belongs to another user"):
        read_ticket(path)


def test_one_of_another_version_says_which(tmp_path: Path) -> None:
    path = tmp_path / "job.ticket"
    ticket(outlast="9.9").write(path)
    with pytest.raises(ConfigError, match=r"made by Outlast 9\.9, and this machine has .*: install the same"):
        read_ticket(path)


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b'{"some": "json"}'])
def test_what_is_no_ticket_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "job.ticket"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="no ticket of Outlast"):
        read_ticket(path)


@pytest.mark.parametrize("changes", [{"token": "abc"}, {"token": "zz" * 32}, {"coordinators": ()}])
def test_a_damaged_one_is_to_be_copied_anew(tmp_path: Path, changes: dict[str, object]) -> None:
    path = tmp_path / "job.ticket"
    ticket(**changes).write(path)
    with pytest.raises(ConfigError, match="copy it anew"):
        read_ticket(path)


def test_a_file_that_is_not_there_and_a_pipe_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_ticket(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigError, match="not a regular file"):
        read_ticket(tmp_path / "pipe")


def test_the_token_is_in_no_message(tmp_path: Path) -> None:
    path = tmp_path / "job.ticket"
    ticket(token="ab" * 31).write(path)
    with pytest.raises(ConfigError) as caught:
        read_ticket(path)
    assert "abab" not in str(caught.value)


def test_another_program_has_another_digest(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("a = 1\n")
    before = digest_of(script)
    script.write_text("a = 2\n")
    assert digest_of(script) != before and digest_of(None) == ""


def test_a_directory_is_no_ticket(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a regular file"):
        read_ticket(tmp_path)
