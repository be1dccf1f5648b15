"""What the tests of this package share: a sink that remembers, meshes that are closed, and a bare peer."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from leaks import nothing_new
from outlast.mesh.frames import seal
from outlast.mesh.greeting import Credentials, Greeting
from outlast.mesh.transport import Mesh
from outlast.protocol.header import Header
from outlast.protocol.lines import Line
from outlast.protocol.views import Member
from outlast.wire.address import parse_address
from patience import PATIENCE_S

JOB = "job-1"
TOKEN = bytes(range(32))


class Recorder:
    """Remembers what happened, in order. The two hooks make it misbehave."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.frames: list[tuple[Member, Header, bytes | None]] = []
        self.news: list[tuple[str, int, int]] = []
        self.reasons: list[str] = []
        self.on_destination: Callable[[Header], memoryview | None] = lambda h: memoryview(bytearray(h.size))
        self.on_arrived: Callable[[Member, Header], object] = lambda _m, _h: None
        self.on_connected: Callable[[Member], object] = lambda _m: None
        self.on_lost: Callable[[Member], object] = lambda _m: None
        self.on_line: Callable[[Line], object] = lambda _l: None
        self.threads: set[str] = set()

    def destination(self, line: Line, header: Header) -> memoryview | None:
        self.threads.add(threading.current_thread().name)
        return self.on_destination(header)

    def arrived(self, line: Line, header: Header, payload: memoryview | None) -> None:
        self.on_arrived(line.peer, header)
        with self.changed:
            self.frames.append((line.peer, header, None if payload is None else bytes(payload)))
            self.changed.notify_all()

    def connected(self, line: Line) -> None:
        self.on_line(line)
        self._note("connected", line.peer)
        self.on_connected(line.peer)

    def lost(self, line: Line, why: str) -> None:
        self.reasons.append(why)
        self._note("lost", line.peer)
        self.on_lost(line.peer)

    def _note(self, what: str, peer: Member) -> None:
        self.threads.add(threading.current_thread().name)
        with self.changed:
            self.news.append((what, peer.replica, peer.incarnation))
            self.changed.notify_all()

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for something that shows in what was recorded."""
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE_S), (self.news, self.reasons, len(self.frames))

    def until_frames(self, count: int) -> None:
        self.until(lambda: len(self.frames) >= count)

    def until_news(self, what: str, replica: int, incarnation: int = 1, times: int = 1) -> None:
        self.until(lambda: self.news.count((what, replica, incarnation)) >= times)

    def steps(self) -> list[int]:
        return [header.step for _, header, _ in self.frames]


def eventually(condition: Callable[[], object]) -> None:
    """For what sets no event: the inside of a mesh, or of the kernel."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.002)):
        if condition():
            return
        pause.wait(0.002)
    raise AssertionError("it did not happen")


class Party:
    """Meshes of one test by replica, each with its recorder."""

    def __init__(self) -> None:
        self.meshes: dict[int, Mesh] = {}
        self.sinks: dict[int, Recorder] = {}

    def add(self, replica: int, *, incarnation: int | None = 1, **options: Any) -> tuple[Mesh, Recorder]:
        sink = Recorder()
        mesh = Mesh(**{"job": JOB, "token": TOKEN, "replica": replica, "sink": sink, **options})
        self.meshes[replica], self.sinks[replica] = mesh, sink
        mesh.open()
        if incarnation is not None:
            mesh.live(incarnation)
        return mesh, sink

    def member(self, replica: int, incarnation: int = 1) -> Member:
        return Member(replica, incarnation, self.meshes[replica].address)

    def meet(self) -> None:
        """All want all, and have found each other."""
        members = [self.member(replica) for replica in self.meshes]
        for mesh in self.meshes.values():
            mesh.peers(members)
        for replica, sink in self.sinks.items():
            for member in members:
                if member.replica != replica:
                    sink.until_news("connected", member.replica)


@contextlib.contextmanager
def party(*replicas: int, **options: Any) -> Iterator[Party]:
    """Leaves no thread and no descriptor behind."""
    made = Party()
    with nothing_new():
        try:
            for replica in replicas:
                made.add(replica, **options)
            yield made
        finally:
            for mesh in made.meshes.values():
                mesh.close(flush_within_s=0.1)


@contextlib.contextmanager
def bare_dial(
    mesh: Mesh, *, replica: int = 9, incarnation: int = 1, to: int = 1, token: bytes = TOKEN
) -> Iterator[socket.socket]:
    """A peer that greets as it should; what it says after that is up to the test."""
    with socket.create_connection(parse_address(mesh.address), timeout=PATIENCE_S) as sock:
        credentials = Credentials(JOB, token, replica, incarnation)
        dialled = Member(mesh.replica, to, mesh.address)
        # On a blocking socket a greeting takes one call.
        assert Greeting(sock, credentials, dialled=dialled).advance() == dialled
        yield sock


def ends(sock: socket.socket) -> bool:
    """Whether the other side closes without a further word."""
    with contextlib.suppress(ConnectionError):
        return sock.recv(1) == b""
    return True


def framed(number: int, header: Header, payload: bytes = b"") -> bytes:
    """The bytes of the frame of that number on its connection."""
    return header.pack() + payload + seal(number)


def head(step: int = 0, size: int = 0, **fields: int) -> Header:
    return Header(**{"kind": 1, "incarnation": 1, "step": step, "size": size, **fields})
