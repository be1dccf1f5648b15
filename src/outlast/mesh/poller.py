"""One thread that waits for many sockets, and a bell to call it.

The thread that calls `turn` is *the I/O thread*; handlers run in it. Watching and forgetting belong to it
alone. `change` and `ring` may be called from any thread: the kernel takes a change of what is waited for into
account even while `turn` is waiting, so a thread that has queued something needs no bell to have it sent.
"""

import os
import select
import socket
from collections.abc import Callable

READABLE = select.EPOLLIN
WRITABLE = select.EPOLLOUT
HUNG_UP = select.EPOLLRDHUP
"""The other side will send nothing more. Plain errors are always reported, asked for or not."""

_EVENTS_PER_TURN = 256

Handler = Callable[[int], None]


class Poller:
    """Level-triggered: what a handler leaves unread is reported again in the next turn."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._bell, READABLE)
        self._handlers: dict[int, Handler] = {}

    def watch(self, sock: socket.socket, events: int, handler: Handler) -> None:
        self._epoll.register(sock, events)
        self._handlers[sock.fileno()] = handler

    def change(self, sock: socket.socket, events: int) -> None:
        self._epoll.modify(sock, events)

    def forget(self, sock: socket.socket) -> None:
        """Before the socket is closed, for a closed one has no number any more."""
        if self._handlers.pop(sock.fileno(), None) is not None:
            self._epoll.unregister(sock)

    def ring(self) -> None:
        """Make the current or the next `turn` return soon."""
        os.eventfd_write(self._bell, 1)

    def turn(self, timeout_s: float | None) -> None:
        """Wait for something to happen, and have it handled.

        A handler may forget sockets that others of the same turn are about, and a new socket may get the
        number of a forgotten one. So an event is a hint: handlers ask the socket what is the case."""
        for fd, events in self._epoll.poll(timeout_s, _EVENTS_PER_TURN):
            if fd == self._bell:
                os.eventfd_read(self._bell)
                continue
            handler = self._handlers.get(fd)
            if handler is not None:
                handler(events)

    def close(self) -> None:
        """Also in a forked child, where it closes the child's copies and changes nothing for the parent."""
        self._handlers.clear()
        if not self._epoll.closed:
            self._epoll.close()
            os.close(self._bell)
