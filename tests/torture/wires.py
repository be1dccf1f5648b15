"""Connections of living processes, taken hold of from outside: cut, robbed of bytes, and fed with some.

A descriptor of another process can be had from the kernel (`pidfd_getfd`), and what is done to it is done to
the connection itself. The two processes find out as they would with a broken network, or a broken middlebox:
from what they read, or cannot write.
"""

import contextlib
import ctypes
import os
import random
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_PIDFD_GETFD = 438
"""The number of the system call, which is the same on every architecture."""
_ESTABLISHED = "01"
_CATCH_WITHIN_S = 1.0
_DIRECTIONS = {"": socket.SHUT_RDWR, "read": socket.SHUT_RD, "write": socket.SHUT_WR}


@dataclass(frozen=True)
class End:
    """One end of a TCP connection: a descriptor of a process."""

    pid: int
    fd: int
    here: str
    there: str


def connections(owners: Mapping[int, str], what: str) -> list[tuple[End, End]]:
    """Both ends of each connection between processes whose kinds are known: "mesh" between two replicas,
    "control" between the coordinator and anybody."""
    ends = {end.here: end for pid in owners for end in _ends(pid)}
    found = []
    for end in sorted(ends.values(), key=lambda end: (end.pid, end.fd)):
        other = ends.get(end.there)
        if other is None or end.here > other.here:
            continue
        kinds = [owners[end.pid], owners[other.pid]]
        if (what == "mesh" and kinds == ["replica"] * 2) or (what == "control" and "coordinator" in kinds):
            found.append((end, other))
    return found


def cut(end: End, how: str = "") -> None:
    """End a connection under its owners' hands, in both directions or in one."""
    # The other side may have closed it in the same moment.
    with _taken(end) as taken, contextlib.suppress(OSError):
        taken.shutdown(_DIRECTIONS[how])


def lose(end: End, amount: int) -> int:
    """Take up to so many bytes away that had arrived; how many it were."""
    with _taken(end) as taken:
        deadline = time.monotonic() + _CATCH_WITHIN_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if caught := taken.recv(amount, socket.MSG_DONTWAIT):
                    return len(caught)
    return 0


def add(end: End, amount: int) -> int:
    """Put so many bytes of noise in what this end sends; how many it were."""
    noise = random.Random(amount).randbytes(amount)
    with _taken(end) as taken, contextlib.suppress(OSError):
        return taken.send(noise, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    return 0


def _taken(end: End) -> socket.socket:
    libc = ctypes.CDLL(None, use_errno=True)
    process = os.pidfd_open(end.pid)
    try:
        fd = libc.syscall(_PIDFD_GETFD, process, end.fd, 0)
        if fd < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"pidfd_getfd: {os.strerror(code)}")
    finally:
        os.close(process)
    return socket.socket(fileno=fd)


def _ends(pid: int) -> list[End]:
    """The TCP connections that a process has open; none when it is gone."""
    inodes: dict[str, int] = {}
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if found := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{name}")):
                    inodes[found[1]] = int(name)
        table = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    except OSError:
        return []
    rows = [line.split() for line in table]
    return [
        End(pid, inodes[row[9]], row[1], row[2])
        for row in rows
        if row[3] == _ESTABLISHED and row[9] in inodes
    ]
