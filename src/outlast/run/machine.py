"""One machine's part in a job of several: who it is, where it is reached, and whether it can take part.

What is wrong with a machine is best known before anything has begun on it, and is told with its name.
"""

import ipaddress
import re
import socket
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import msgspec

from outlast.errors import ConfigError, ScriptNotFound, UsageError
from outlast.wire.address import is_loopback, join_address, parse_address
from outlast.wire.interfaces import address_towards, own_address, own_addresses
from outlast.wire.rundir import Reach
from outlast.wire.ticket import Ticket, digest_of

COORDINATOR_PORT = 7700
"""Where a coordinator listens if nothing else is said."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    name: str
    ticket: Ticket
    reach: Reach
    coordinator: int | None
    """Which of the ticket's coordinators is to run here."""

    def listens_on(self) -> str:
        """Where the coordinator of this machine listens."""
        assert self.coordinator is not None
        return join_address(self.reach.bind, parse_address(self.ticket.coordinators[self.coordinator])[1])


def machine_name(given: str | None) -> str:
    name = given or re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:64]
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}", name):
        raise UsageError(f"--machine is {name!r}; use letters, digits, dashes, underscores and dots")
    return name


def reach_of(
    coordinators: tuple[str, ...], *, bind: str | None, advertise: str | None, ports: str | None
) -> Reach:
    """Where this machine listens and is reached. If nothing is said: where a coordinator of the job is meant
    to be, if that is here, and else from where packets to the first one leave."""
    if bind is not None:
        own = own_address(bind)
    else:
        here = {str(ip) for _, ip in own_addresses()}
        meant = [host for host in map(_numeric_host, coordinators) if host in here]
        own = meant[0] if meant else address_towards(coordinators[0])
    if ipaddress.ip_address(own).is_unspecified and not advertise:
        raise UsageError(f"--bind is {own}, which is everywhere: say with --advertise where others reach it")
    return Reach(
        bind=own, advertise=numeric(advertise) if advertise else "", ports=_ports(ports) if ports else (0, 0)
    )


def own_coordinator(coordinators: tuple[str, ...], reach: Reach) -> int | None:
    for index, address in enumerate(coordinators):
        if _numeric_host(address) == reach.known_as:
            return index
    return None


def check_reach(reach: Reach, coordinators: tuple[str, ...], per_machine: int) -> None:
    """Whether others can reach this machine, and all of its replicas, as far as that is known beforehand."""
    elsewhere = [address for address in coordinators if not is_loopback((_numeric_host(address), 0))]
    if is_loopback((reach.known_as, 0)) and elsewhere:
        raise UsageError(
            f"others cannot reach this machine at {reach.known_as}, and {elsewhere[0]} is another one: say "
            "with --bind which of its addresses they reach"
        )
    first, last = reach.ports
    if first and last - first + 1 < per_machine:
        raise UsageError(
            f"--ports {first}-{last} are too few: this machine has room for {per_machine} replicas, and each "
            "needs a port of its own"
        )


def check_open(reach: Reach, *, insecure: bool) -> None:
    if not insecure and not is_loopback((reach.bind, 0)):
        raise ConfigError(
            f"{reach.bind} can be reached from other machines, and messages are not encrypted yet: start the "
            "job with --insecure if everybody on that network is trusted"
        )


def check_program(machine: str, ticket: Ticket) -> None:
    """Whether the program is here, and the same as where the ticket was made."""
    folder = Path(ticket.working_directory)
    if not folder.is_dir():
        raise ScriptNotFound(f"{machine} has no directory {folder}: say with --directory where to work")
    program = _program(ticket)
    if ticket.argv[0] != "-m" and (program is None or not program.is_file()):
        raise ScriptNotFound(f"{machine} has no script {program}: copy it there, or say with --script where")
    if program is None and ticket.digest:
        raise ScriptNotFound(f"{machine} has no module {ticket.argv[1]}: install what the others have")
    if digest_of(program) != ticket.digest:
        raise ConfigError(
            f"{machine} has another {program} than the machine that the ticket is from: all replicas must "
            "run the same program, so copy it there"
        )


def relocated(ticket: Ticket, *, script: str | None, directory: str | None) -> Ticket:
    """The same, with the program where it lies on this machine."""
    if script is not None:
        if ticket.argv[0] == "-m":
            raise UsageError(f"--script is {script!r}, but the job runs the module {ticket.argv[1]}")
        ticket = msgspec.structs.replace(ticket, argv=(str(Path(script).absolute()), *ticket.argv[1:]))
    if directory is not None:
        ticket = msgspec.structs.replace(ticket, working_directory=str(Path(directory).absolute()))
    return ticket


def numeric(host: str) -> str:
    """The address behind a name: peers do not ask a name server while they train."""
    try:
        return str(socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{host!r} cannot be resolved on {socket.gethostname()} ({error})") from None


def coordinator_addresses(text: str) -> tuple[str, ...]:
    """`10.0.0.1,10.0.0.2:7701,[fd00::1]`: hosts, with a port where it is not the usual one."""
    found = []
    for part in filter(None, text.split(",")):
        has_port = part.rpartition(":")[2].isdigit() and not part.endswith("]") and part.count(":") == 1
        has_port |= "]:" in part
        address = part if has_port else f"{_bracketed(part)}:{COORDINATOR_PORT}"
        parse_address(address)
        found.append(address)
    if not found:
        raise UsageError("--coordinators names none; give the hosts that are to run one")
    return tuple(found)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _numeric_host(address: str) -> str:
    return numeric(parse_address(address)[0])


def _ports(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    try:
        ports = int(first), int(last or first)
    except ValueError:
        ports = 0, 0
    if not 0 < ports[0] <= ports[1] < 65536:
        raise UsageError(f"--ports is {text!r}; give a range such as 7710-7730")
    return ports


def _program(ticket: Ticket) -> Path | None:
    if ticket.argv[0] != "-m":
        return Path(ticket.working_directory, ticket.argv[0])
    return module_file(ticket.argv[1])


def module_file(module: str) -> Path | None:
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None
