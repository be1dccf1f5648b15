"""The sockets of one mesh: how they are made, and that no forked child keeps them.

Training processes fork: data loaders do. A child that inherited a connection would keep it open after its
parent's death, and the peers, who learn of a death by the end of a connection, would not notice. So a child
closes its copies as soon as it exists. For that every socket must be known from its first moment, and a fork
by another thread waits for the few microseconds between a socket's making and its entry in the list.
"""

import os
import socket
import threading
import weakref

from outlast.wire.address import listen_within, parse_address, tune

BUFFER_BYTES = 4 << 20
"""Of each socket, in each direction; the kernel may give less."""

# Re-entrant, so that a signal handler may fork while its thread makes a socket.
_birth = threading.RLock()
os.register_at_fork(before=_birth.acquire, after_in_parent=_birth.release, after_in_child=_birth.release)


class Sockets:
    """Makes sockets that never block, and remembers those that are open."""

    def __init__(self) -> None:
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
        return _prepared(sock)

    def dial(self, address: str) -> socket.socket:
        """A socket that is on its way to `address`; how that went is to be asked when it is writable."""
        host, port = parse_address(address)
        # Asking a name server could take seconds, and members announce plain numbers.
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        family, kind, proto, _, sockaddr = found[0]
        with _birth:
            sock = socket.socket(family, kind, proto)
            self._made.add(sock)
        _prepared(sock).connect_ex(sockaddr)
        return sock

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
