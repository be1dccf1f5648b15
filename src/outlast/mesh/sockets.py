"""The sockets of one mesh: how they are made, and that no forked child keeps them.

Training processes fork: data loaders do. A child that inherited a connection would keep it open after its
parent's death, and the peers, who learn of a death by the end of a connection, would not notice. So a child
closes its copies as soon as it exists. For that every socket must be known from its first moment, and a fork
by another thread waits for the few microseconds between a socket's making and its entry in the list.
"""

import contextlib
import os
import socket
import threading
import weakref
from typing import Any

from outlast.wire.address import is_loopback, listen_within, parse_address, tune

DEAD_AFTER_S = 3.0
PROBE_EVERY_S = 1
BUFFER_BYTES = 4 << 20
"""Of each socket, in each direction; the kernel may give less."""

# Re-entrant, so that a signal handler may fork while its thread makes a socket.
_birth = threading.RLock()
os.register_at_fork(before=_birth.acquire, after_in_parent=_birth.release, after_in_child=_birth.release)


class Sockets:
    """Makes sockets that never block, and remembers those that are open.

    A network may swallow packets and tell nobody, and the kernel would go on sending them for a quarter of an
    hour. So a connection to another machine ends when nothing has been confirmed for `dead_after_s`. On this
    machine nothing is swallowed; there the other end may well be slow to read, which must not end it."""

    def __init__(self, dead_after_s: float = DEAD_AFTER_S) -> None:
        self._dead_after_s = dead_after_s
        self._made: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def listen(self, host: str, ports: tuple[int, int], *, allow_remote: bool) -> socket.socket:
        with _birth:
            sock = listen_within(host, ports, allow_remote=allow_remote)
            self._made.add(sock)
        _widen(sock)
        sock.setblocking(False)
        return sock

    def accept(self, listener: socket.socket) -> socket.socket:
        with _birth:
            sock, _ = listener.accept()
            self._made.add(sock)
        _prepared(sock)
        # Who hung up meanwhile is nowhere any more.
        with contextlib.suppress(OSError):
            self._watch_over(sock, sock.getpeername())
        return sock

    def dial(self, address: str) -> socket.socket:
        """A socket that is on its way to `address`; how that went is to be asked when it is writable."""
        host, port = parse_address(address)
        # Asking a name server could take seconds, and members announce plain numbers.
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        family, kind, proto, _, sockaddr = found[0]
        with _birth:
            sock = socket.socket(family, kind, proto)
            self._made.add(sock)
        _prepared(sock)
        self._watch_over(sock, sockaddr)
        sock.connect_ex(sockaddr)
        return sock

    def _watch_over(self, sock: socket.socket, peer: tuple[Any, ...]) -> None:
        if not is_loopback(peer):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * self._dead_after_s))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_EVERY_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_EVERY_S)

    def close_inherited(self) -> None:
        """In a forked child: close its copies. The connections are the parent's, and are not shut down."""
        for sock in list(self._made):
            sock.close()


def _prepared(sock: socket.socket) -> socket.socket:
    try:
        sock.setblocking(False)
        tune(sock)
        _widen(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def _widen(sock: socket.socket) -> None:
    for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, buffer, BUFFER_BYTES)
