"""Mistakes with jobs on several machines are told before anything is written or started."""

from pathlib import Path

import pytest

from outlast.cli import agent, run
from outlast.errors import ConfigError, OutlastError, UsageError
from outlast.wire.ticket import read_ticket

STORE = ("--store", "etcd://127.0.0.1:1/tests")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("OUTLAST_HOME", str(tmp_path / "home"))
    path = tmp_path / "train.py"
    path.write_text("print('trained')\n")
    return str(path)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--ticket", "t"), "--store etcd://"),
        (("--ticket", "t", *STORE), "--per-machine"),
        (("--ticket", "t", *STORE, "--per-machine", "1", "--agents", "2", "-n", "2"), "--agents"),
        (("--per-machine", "2"), "give --ticket"),
        (("--insecure",), "give --ticket"),
        (("--coordinators", "10.0.0.1"), "give --ticket"),
        (("--coordinators", "2"), "a store that they share"),
        (("--ticket", "t", *STORE, "--per-machine", "1", "--machine", "a b"), "--machine"),
        (("--ticket", "t", *STORE, "--per-machine", "1", "--ports", "x"), "--ports"),
    ],
)
def test_what_does_not_fit_together_is_named(options: tuple[str, ...], complaint: str, script: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        run.main([*options, script])


def test_no_ticket_is_written_for_a_job_that_cannot_begin(script: str, tmp_path: Path) -> None:
    ticket = tmp_path / "job.ticket"
    with pytest.raises(OutlastError, match=r"etcd at 127\.0\.0\.1:1"):
        run.main(["--ticket", str(ticket), *STORE, "--per-machine", "1", "--machine", "a", script])
    assert not ticket.exists()


def test_an_open_address_needs_the_word_for_it(script: str, tmp_path: Path) -> None:
    options = ["--ticket", str(tmp_path / "t"), *STORE, "--per-machine", "1", "--bind", "203.0.113.1"]
    with pytest.raises(ConfigError, match="--insecure"):
        run.main([*options, script])


def test_a_machine_that_cannot_join_names_itself(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^rack-7: the ticket .*nothing cannot be read"):
        agent.main(["--join", str(tmp_path / "nothing"), "--machine", "rack-7"])
    with pytest.raises(ConfigError):
        read_ticket(tmp_path / "nothing")
