"""Addresses as people write them (`127.0.0.1:7000`, `[::1]:7000`), and sockets that listen on them.

Messages are authenticated at the start of a connection and travel in the clear after that. On the loopback
interface that is sound: only root can read or change other people's bytes there. Anywhere else it is not, so
a listener leaves loopback only when told to explicitly.

One thing remains that an ordinary account can do on loopback: listen on a port where a client expects the
coordinator, and pass every byte on to the real one, handshake included. `channel_binding` is the answer: both
ends mix the connection's two addresses, as they see them, into their proofs. A relay makes two connections
with different addresses, and no proof fits both. (A port forwarder such as an SSH tunnel is such a relay, and
is refused like one.)
"""

import errno
import ipaddress
import socket
from typing import Any

from outlast.errors import AddressInUse, ConfigError

KEEPALIVE_IDLE_S = 10
KEEPALIVE_INTERVAL_S = 5
KEEPALIVE_PROBES = 3
_ACCEPT_BACKLOG = 4096
"""While nobody accepts, as many may wait as the system allows: it drops those for whom there is no place, and
they notice only after a second."""


def parse_address(address: str) -> tuple[str, int]:
    """`host:port`; an IPv6 host stands in brackets. No host is refused: it would mean every interface."""
    host, colon, port_text = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"address {address!r} is ambiguous: write an IPv6 host in brackets, [::1]:7000")
    port_is_number = port_text.isascii() and port_text.isdigit()
    if not (colon and host and port_is_number and int(port_text) <= 65535):
        raise ConfigError(f"address {address!r} is not host:port, for example 127.0.0.1:7000")
    return host, int(port_text)


def format_address(sockaddr: tuple[Any, ...]) -> str:
    host, port = sockaddr[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(sockaddr: tuple[Any, ...]) -> bool:
    return _plain_ip(sockaddr).is_loopback


def listen(address: str, *, allow_remote: bool = False) -> socket.socket:
    """A listening socket on `address`; port 0 lets the system choose one."""
    host, port = parse_address(address)
    try:
        family, kind, proto, _, sockaddr = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"address {address!r}: the host can not be resolved ({error})") from error
    check_interface(sockaddr, allow_remote=allow_remote)
    sock = socket.socket(family, kind, proto)
    try:
        # A restarted coordinator must get its port back although old connections are in TIME_WAIT.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(sockaddr)
        sock.listen(_ACCEPT_BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(
                f"somebody listens on {address} already: pick another port, or port 0 to get a free one"
            ) from error
        raise ConfigError(f"can not listen on {address} ({error.strerror}): pick another address") from error
    return sock


def listen_within(host: str, ports: tuple[int, int], *, allow_remote: bool = False) -> socket.socket:
    """A listening socket on the first free port of a range; (0, 0) lets the system choose one."""
    first, last = ports
    for port in range(first, last + 1):
        try:
            return listen(join_address(host, port), allow_remote=allow_remote)
        except AddressInUse:
            continue
    raise AddressInUse(
        f"all ports from {first} to {last} of {host} are in use: each replica needs one of its own"
    )


def join_address(host: str, port: int) -> str:
    return format_address((host, port))


def check_interface(sockaddr: Any, *, allow_remote: bool) -> None:
    """Refuse to be reachable from elsewhere by accident. Also for sockets that somebody else has opened."""
    if not isinstance(sockaddr, tuple):
        raise ConfigError(f"a listener needs a TCP socket, not one with the address {sockaddr!r}")
    if not allow_remote and not is_loopback(sockaddr):
        raise ConfigError(
            f"{format_address(sockaddr)} can be reached from other machines, and messages are not encrypted: "
            "listen on 127.0.0.1, or say with --insecure that everybody on that network is trusted"
        )


def tune(sock: socket.socket) -> None:
    """Messages are small and somebody waits for each, so none is held back to be sent with the next; and a
    peer whose machine has vanished is noticed although nobody writes to it."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)


def refuse_self_connection(sock: socket.socket) -> None:
    """TCP can connect a socket to itself when the port is in the range of outgoing ports and nobody listens:
    exactly what happens to a client that retries while the coordinator restarts. It would talk to itself and,
    worse, occupy the coordinator's port."""
    if sock.getsockname() == sock.getpeername():
        raise ConnectionRefusedError(errno.ECONNREFUSED, "connection refused: nobody listens there")


def channel_binding(client: tuple[Any, ...], server: tuple[Any, ...]) -> bytes:
    """What both ends of an unrelayed loopback connection agree on. Empty beyond loopback, where address
    translation changes addresses without any ill will."""
    ends = (client, server)
    if not all(is_loopback(end) for end in ends):
        return b""
    return " ".join(f"{_plain_ip(end)}|{end[1]}" for end in ends).encode()


def _plain_ip(sockaddr: tuple[Any, ...]) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """A socket for both families shows IPv4 peers as ::ffff:127.0.0.1; the peer itself sees 127.0.0.1."""
    ip = ipaddress.ip_address(str(sockaddr[0]).partition("%")[0])
    return (ip.ipv4_mapped or ip) if isinstance(ip, ipaddress.IPv6Address) else ip
