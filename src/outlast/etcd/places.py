"""Where members are: `HOST[:CLIENTPORT[:PEERPORT]]`, and `a=HOST,b=HOST,c=HOST` for a whole cluster.

An address has two sides. Others reach a member by the host as it is written; the member itself listens on an
address of its machine, which etcd wants as a number. A name that stands for loopback on its own machine (many
systems have that in /etc/hosts) would hide a member from all others, so that is refused.
"""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from outlast.coordinator.store.gateway import Endpoint
from outlast.errors import AddressInUse, ConfigError, UsageError
from outlast.wire.address import is_loopback

CLIENT_PORT = 2379
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,62}")

_PLACE = re.compile(
    r"(?:\[(?P<v6>[0-9a-fA-F:.%\w]+)\]|(?P<host>[^:\[\]\s,=/@]+))(?::(?P<client>\d{1,5})(?::(?P<peer>\d{1,5}))?)?"
)


@dataclass(frozen=True)
class Place:
    """How others reach a member: clients at one port, members at another."""

    host: str
    client_port: int
    peer_port: int

    @property
    def client(self) -> Endpoint:
        return Endpoint(self.host, self.client_port)

    @property
    def peer_url(self) -> str:
        return f"http://{Endpoint(self.host, self.peer_port)}"

    def __str__(self) -> str:
        return f"{self.client}:{self.peer_port}"


def parse_place(text: str) -> Place:
    found = _PLACE.fullmatch(text)
    client = int(found["client"] or CLIENT_PORT) if found else 0
    peer = int(found["peer"] or client + 1) if found else 0
    if found is None or not (0 < client < 1 << 16 and 0 < peer < 1 << 16) or client == peer:
        raise ConfigError(
            f"{text!r} does not say where a member is: give HOST, HOST:CLIENTPORT or "
            "HOST:CLIENTPORT:PEERPORT, two different ports (2379 and the one above it, unless you say "
            "otherwise); an IPv6 host stands in brackets"
        )
    return Place(found["v6"] or found["host"], client, peer)


def parse_members(text: str) -> dict[str, Place]:
    """`a=HOST,b=HOST,c=HOST`, the same list on every machine."""
    members: dict[str, Place] = {}
    for one in text.split(","):
        name, equals, place = one.partition("=")
        if not equals:
            raise ConfigError(f"{one!r} in --members is no member: give NAME=HOST for each of them")
        check_name(name)
        if name in members:
            raise ConfigError(f"--members names {name!r} twice: each member has a name of its own")
        members[name] = parse_place(place)
    ports = [
        (place.host, port) for place in members.values() for port in (place.client_port, place.peer_port)
    ]
    if len(set(ports)) != len(ports):
        raise ConfigError(
            f"--members {text!r} has a host and port twice: each member needs two ports of its own"
        )
    return members


def spelled(members: Mapping[str, Place]) -> str:
    """The same list always in the same words."""
    return ",".join(f"{name}={members[name]}" for name in sorted(members))


def check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"a member cannot be called {name!r}: use letters, digits, dashes, underscores and, not in "
            "front, dots"
        )


def own_name(members: Mapping[str, Place]) -> str:
    """Which of them this machine is, if that is clear."""
    here = [name for name, place in members.items() if _is_here(place.host)]
    if len(here) != 1:
        which = f"{' and '.join(here)} all are" if here else "none of them is"
        raise UsageError(f"{which} at an address of this machine: say which member to start with --name")
    return here[0]


def listening_ip(place: Place, *, bind: str | None, insecure: bool, alone: bool) -> str:
    """On which address of this machine the member listens. `alone`: nobody elsewhere has to reach it."""
    host = bind or place.host
    sockaddr = _resolve(host)
    if not is_loopback(sockaddr) and not insecure:
        raise ConfigError(
            f"{host} can be reached from other machines, and nothing that members and clients say there is "
            "encrypted or authenticated: whoever reaches it may read and change everything. If only machines "
            "that you trust are on that network, say --insecure; else use 127.0.0.1"
        )
    if is_loopback(sockaddr) and not alone and bind is None:
        raise ConfigError(
            f"{host} stands for {sockaddr[0]} on this machine, where no other member can reach it: give its "
            "address on the network as HOST, or say where to listen with --bind ADDRESS"
        )
    return str(sockaddr[0])


def reaches_beyond(host: str) -> bool:
    try:
        return not is_loopback(_resolve(host))
    except ConfigError:
        # What cannot be found here is surely not here.
        return True


def check_ports(ip: str, place: Place) -> None:
    """Somebody who listens there already is better named before anything has begun."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    for port, other in ((place.client_port, "CLIENTPORT"), (place.peer_port, "PEERPORT")):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((ip, port))
                probe.listen(1)
            except PermissionError:
                raise ConfigError(f"you may not listen on port {port}: choose one above 1023") from None
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise ConfigError(
                        f"can not listen on {ip} ({error.strerror}): is it an address of this machine?"
                    ) from None
                raise AddressInUse(
                    f"somebody listens on {Endpoint(ip, port)} already, perhaps another etcd (Debian's "
                    "package starts one by itself: `systemctl disable --now etcd`): end it, or choose "
                    f"another {other} in HOST:CLIENTPORT:PEERPORT"
                ) from None


def _is_here(host: str) -> bool:
    try:
        sockaddr = _resolve(host)
        with socket.socket(socket.AF_INET6 if ":" in str(sockaddr[0]) else socket.AF_INET) as probe:
            probe.bind((sockaddr[0], 0))
    except (ConfigError, OSError):
        return False
    return True


def _resolve(host: str) -> tuple[str, int]:
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ConfigError(f"no machine of the name {host!r} can be found: give its address") from None
    # etcd is told one address; where a name has both kinds, the older one is the safer choice.
    found.sort(key=lambda one: one[0] != socket.AF_INET)
    return str(found[0][4][0]), 0
