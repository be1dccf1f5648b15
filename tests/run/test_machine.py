"""What a machine needs to take part, and what it is told if it cannot."""

from pathlib import Path

import msgspec
import pytest

from outlast.errors import ConfigError, ScriptNotFound, UsageError
from outlast.protocol.views import JobSpec
from outlast.run.machine import (
    check_open,
    check_program,
    check_reach,
    coordinator_addresses,
    machine_name,
    own_coordinator,
    reach_of,
    relocated,
)
from outlast.wire.rundir import Reach
from outlast.wire.ticket import Ticket, digest_of

COORDINATORS = ("127.0.0.1:7700", "127.0.0.2:7701", "192.0.2.1:7700")


def ticket(script: Path, **changes: object) -> Ticket:
    made = Ticket(
        outlast="1",
        spec=JobSpec(name="job", replicas=1, shards=1, per_machine=1),
        token="ab" * 32,
        store="etcd://127.0.0.1:2379/jobs",
        coordinators=COORDINATORS,
        argv=(str(script), "--lr", "0.1"),
        digest=digest_of(script),
        working_directory=str(script.parent),
    )
    return msgspec.structs.replace(made, **changes)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("import outlast\n")
    return path


def test_the_machine_that_has_the_address_of_a_coordinator_runs_it() -> None:
    reach = reach_of(COORDINATORS, bind=None, advertise=None, ports=None)
    assert reach.bind == "127.0.0.1"
    assert own_coordinator(COORDINATORS, reach) == 0
    assert own_coordinator(COORDINATORS, Reach(bind="127.0.0.2")) == 1
    assert own_coordinator(COORDINATORS, Reach(bind="127.0.0.3")) is None


def test_what_counts_is_where_others_reach_it() -> None:
    reach = reach_of(COORDINATORS, bind="127.0.0.9", advertise="192.0.2.1", ports="7710-7730")
    assert (reach.bind, reach.known_as, reach.ports) == ("127.0.0.9", "192.0.2.1", (7710, 7730))
    assert own_coordinator(COORDINATORS, reach) == 2


def test_all_interfaces_are_no_address_that_others_could_be_told() -> None:
    everywhere = "0.0.0.0"  # noqa: S104 (that is the point)
    with pytest.raises(UsageError, match="--advertise"):
        reach_of(COORDINATORS, bind=everywhere, advertise=None, ports=None)
    assert reach_of(COORDINATORS, bind=everywhere, advertise="192.0.2.1", ports=None).bind == everywhere


@pytest.mark.parametrize("ports", ["0", "9-3", "a-b", "70000", "1-70000"])
def test_a_range_of_ports_that_is_none_is_refused(ports: str) -> None:
    with pytest.raises(UsageError, match="--ports"):
        reach_of(COORDINATORS, bind="lo", advertise=None, ports=ports)


def test_ports_have_to_suffice_for_all_replicas_of_a_machine() -> None:
    check_reach(Reach(bind="127.0.0.1", ports=(7710, 7711)), COORDINATORS[:2], per_machine=2)
    with pytest.raises(UsageError, match=r"--ports 7710-7710 are too few: .* 2 replicas"):
        check_reach(Reach(bind="127.0.0.1", ports=(7710, 7710)), COORDINATORS[:2], per_machine=2)


def test_a_machine_that_others_cannot_reach_is_refused() -> None:
    with pytest.raises(UsageError, match=r"others cannot reach this machine at 127\.0\.0\.1.*--bind"):
        check_reach(Reach(bind="127.0.0.1"), COORDINATORS, per_machine=1)


def test_an_open_address_needs_the_word_of_whoever_began_the_job() -> None:
    check_open(Reach(bind="127.0.0.1"), insecure=False)
    check_open(Reach(bind="192.0.2.1"), insecure=True)
    with pytest.raises(ConfigError, match="--insecure"):
        check_open(Reach(bind="192.0.2.1"), insecure=False)


def test_another_program_is_refused_with_the_name_of_the_machine(script: Path) -> None:
    given = ticket(script)
    check_program("rack-7", given)
    script.write_text("import something\n")
    with pytest.raises(ConfigError, match=r"rack-7 has another .*train\.py"):
        check_program("rack-7", given)


def test_a_program_that_is_missing_is_refused_with_the_name_of_the_machine(script: Path) -> None:
    given = ticket(script)
    script.unlink()
    with pytest.raises(ScriptNotFound, match=r"rack-7 has no script .*--script"):
        check_program("rack-7", given)
    with pytest.raises(ScriptNotFound, match=r"rack-7 has no directory .*--directory"):
        check_program("rack-7", msgspec.structs.replace(given, working_directory="/nowhere"))
    with pytest.raises(ScriptNotFound, match="rack-7 has no module no_such_module"):
        check_program("rack-7", msgspec.structs.replace(given, argv=("-m", "no_such_module")))


def test_the_program_may_lie_elsewhere(script: Path, tmp_path: Path) -> None:
    given = ticket(script)
    other = tmp_path / "copy.py"
    script.rename(other)
    moved = relocated(given, script=str(other), directory=None)
    assert moved.argv == (str(other), "--lr", "0.1")
    check_program("rack-7", moved)


def test_coordinators_are_hosts_with_a_port_where_it_matters() -> None:
    found = coordinator_addresses("10.0.0.1,10.0.0.2:7701,fd00::1,[fd00::2],[fd00::3]:9,host")
    assert found == (
        "10.0.0.1:7700",
        "10.0.0.2:7701",
        "[fd00::1]:7700",
        "[fd00::2]:7700",
        "[fd00::3]:9",
        "host:7700",
    )
    with pytest.raises(UsageError, match="names none"):
        coordinator_addresses(",")


@pytest.mark.parametrize("name", ["a b", "../x", ".hidden", "x" * 65])
def test_a_name_that_cannot_be_one_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="--machine"):
        machine_name(name)
