"""This machine's own addresses: which one is meant, and which one others see.

Where to listen is said as an address, as a network in which this machine has one (`10.0.0.0/8`), or as the
name of an interface (`eth0`). Whoever says nothing means the address from which packets to the others leave.
"""

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

from outlast.errors import ConfigError
from outlast.wire.address import parse_address

SIOCGIFADDR = 0x8915

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address


def own_addresses() -> list[tuple[str, Ip]]:
    """Each interface with its addresses; those that only mean something on one link are left out."""
    found = [(name, ip) for _, name in socket.if_nameindex() if (ip := _ipv4(name)) is not None]
    return found + [(name, ip) for name, ip in _ipv6() if not ip.is_link_local]


def own_address(where: str) -> str:
    """The address of this machine that is meant by an address, a network or the name of an interface."""
    found = own_addresses()
    try:
        network = ipaddress.ip_network(where, strict=False)
    except ValueError:
        matching = [ip for name, ip in found if name == where]
    else:
        if network.num_addresses == 1:
            return str(network.network_address)
        matching = [ip for _, ip in found if ip in network]
    if not matching:
        known = ", ".join(f"{ip} ({name})" for name, ip in found)
        raise ConfigError(
            f"{where!r} is neither an address, nor an interface of {socket.gethostname()}, nor a network in "
            f"which it has an address; it has {known}"
        )
    return str(matching[0])


def address_towards(others: str) -> str:
    """The address of this machine that packets to `host:port` would leave from. Nothing is sent."""
    host, port = parse_address(others)
    try:
        family, kind, proto, _, sockaddr = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, proto) as sock:
            sock.connect(sockaddr)
            return str(sock.getsockname()[0])
    except OSError as error:
        raise ConfigError(
            f"{socket.gethostname()} knows no way to {others} ({error.strerror or error}): say with --bind "
            "which of its addresses the others can reach"
        ) from None


def _ipv4(interface: str) -> Ip | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            answer = fcntl.ioctl(sock.fileno(), SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return None
    return ipaddress.IPv4Address(answer[20:24])


def _ipv6() -> list[tuple[str, Ip]]:
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return []
    fields = [line.split() for line in lines]
    return [(field[5], ipaddress.IPv6Address(bytes.fromhex(field[0]))) for field in fields]
