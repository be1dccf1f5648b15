"""The mesh as the rest of Outlast sees it: say whom you want, send frames to them, and be told what comes.

Connections are between *lives*, not processes: both ends of each have agreed on who they are, and a life that
ends takes its connections with it. Who is wanted is said by `peers`, whenever a view changes; connections
between those who stay are not touched. A connection that is lost is made anew for as long as it is wanted;
frames that were under way are lost, and `lost` and `connected` tell the sink so.

Threads: `open` starts one, the I/O thread. It alone reads, dials, closes, and calls the sink, with no lock
held; unless another thread, which waits for what comes, does all of that in its place (`attend`). Everything
public may be called from any thread, the sink's own calls included, and never waits for a peer; only `close`
waits, and not in the I/O thread. What another thread decides about connections (`peers`, `live`, `drop`)
holds for `send` at once, and the sink hears of it soon after. A frame that the I/O thread is handing to the
sink at that very moment still arrives; whoever must know better looks at its view.
"""

import itertools
import logging
import os
import socket
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterable
from functools import partial

from outlast import locks
from outlast.errors import ConfigError, ProtocolError
from outlast.mesh.connection import Connection
from outlast.mesh.door import Door, life_of
from outlast.mesh.frames import HELLO, MAX_PAYLOAD_BYTES
from outlast.mesh.greeting import Credentials
from outlast.mesh.incoming import Incoming, Sink
from outlast.mesh.poller import Poller
from outlast.mesh.sockets import DEAD_AFTER_S, Sockets
from outlast.protocol.header import Header
from outlast.protocol.lines import Line
from outlast.protocol.views import Member
from outlast.wire.address import join_address
from outlast.wire.handshake import ListenerHandshake

log = logging.getLogger(__name__)

MAX_QUEUED_BYTES = 256 << 20
SCRATCH_BYTES = 1 << 20
FLUSH_WITHIN_S = 1.0
GUEST_RETURNS_S = 0.003
"""A guest that leaves the helm is likely to be back within this time; only then the I/O thread takes over."""


class Mesh:
    """One process's place in the mesh. `address` is where peers reach it, known before `open`."""

    def __init__(
        self,
        *,
        job: str,
        token: bytes,
        replica: int,
        sink: Sink,
        bind: str = "127.0.0.1",
        ports: tuple[int, int] = (0, 0),
        advertise: str = "",
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
        max_queued_bytes: int = MAX_QUEUED_BYTES,
        scratch_bytes: int = SCRATCH_BYTES,
        allow_remote: bool = False,
        dead_after_s: float = DEAD_AFTER_S,
    ) -> None:
        for name, value in (("max_queued_bytes", max_queued_bytes), ("scratch_bytes", scratch_bytes)):
            if value <= 0:
                raise ConfigError(f"{name} is {value}: it must be positive")
        # A token that can not work is an error now, not one for the first peer.
        ListenerHandshake(job=job, token=token)
        self.replica = replica
        self._job = job
        self._token = token
        self._sink = sink
        self._max_payload_bytes = max_payload_bytes
        self._max_queued_bytes = max_queued_bytes
        self._scratch = memoryview(bytearray(scratch_bytes))
        self._sockets = Sockets(dead_after_s)
        self._listener = self._sockets.listen(bind, ports, allow_remote=allow_remote)
        host, port = self._listener.getsockname()[:2]
        self.address = join_address(advertise or host, port)
        self._poller = Poller()
        self._door = Door(self._listener, sockets=self._sockets, poller=self._poller, admit=self._admit)
        self._thread: threading.Thread | None = None
        self._lock = locks.lock("mesh")
        # Under the lock: what has been decided, for the I/O thread to carry out.
        self._incarnation: int | None = None
        self._wanted: dict[int, Member] = {}
        self._connections: dict[int, Connection] = {}
        self._doomed: list[tuple[Connection, str]] = []
        self._changed = False
        self._closing = False
        self._closed = False
        self._flush_within_s = FLUSH_WITHIN_S
        # Whose turn it is: the I/O thread's, or that of a guest that waits for what comes.
        self._helm = locks.lock("helm")
        self._guest: int | None = None
        self._called = False
        self._guest_left_at = float("-inf")
        # Of the I/O thread: when each connection that the sink knows of was made, and which life is lived.
        self._since: dict[Connection, float] = {}
        self._numbers = itertools.count(1)
        self._living: int | None = None
        _meshes.add(self)

    @property
    def rejected(self) -> Counter[str]:
        """How many greetings were refused, by reason."""
        return Counter(self._door.rejected)

    def open(self) -> None:
        """Start the I/O thread."""
        with self._lock:
            if self._thread is not None or self._closing:
                raise ConfigError("a mesh is opened once: make another one")
            self._thread = threading.Thread(target=self._run, name="outlast-mesh", daemon=True)
            self._thread.start()

    def live(self, incarnation: int) -> None:
        """Which life this process lives. All connections of another one end; those wanted are made anew."""
        with self._lock:
            if incarnation != self._incarnation:
                self._incarnation = incarnation
                self._doom(list(self._connections.values()), "this process began a new life")
                self._call()

    def peers(self, wanted: Iterable[Member]) -> None:
        """The lives to be connected with, and no others; this process itself is left out."""
        with self._lock:
            self._wanted = {member.replica: member for member in wanted if member.replica != self.replica}
            lives = set(map(life_of, self._wanted.values()))
            extra = [c for c in self._connections.values() if life_of(c.peer) not in lives]
            self._doom(extra, "it is no longer wanted here")
            self._call()

    def send(
        self,
        to: int | Line,
        header: Header,
        *payload: memoryview | bytes,
        keep: object = None,
        more: bool = False,
        droppable: bool = False,
    ) -> bool:
        """Queue a frame for a replica, behind those that were sent before. False if there is no connection,
        or none of the life that the header names; with a line, if that very connection is over.

        The payload is not copied: it must not change until the frame has left, and it is kept alive until
        then, together with `keep`. With `more` the frame may wait for the next one, which must follow at
        once. With `droppable` the connection is dropped rather than `max_queued_bytes` exceeded."""
        line = to if isinstance(to, Line) else None
        connection = self._connections.get(to.peer.replica if isinstance(to, Line) else to)
        if connection is None or connection.line.own != header.incarnation:
            return False
        if line is not None and connection.line.number != line.number:
            return False
        views = [view for view in map(_as_bytes, payload) if view]
        size = sum(map(len, views))
        if header.kind == HELLO or size != header.size or size > self._max_payload_bytes:
            limit = f"the limit is {self._max_payload_bytes} bytes"
            raise ValueError(f"{header} can not be sent with a payload of {size} bytes; {limit}")
        limit_bytes = self._max_queued_bytes if droppable else None
        return connection.send(header.pack(), views, keep, more=more, limit_bytes=limit_bytes)

    def is_connected(self, peer: int) -> bool:
        return peer in self._connections

    def connected_lives(self) -> tuple[Member, ...]:
        """In the order of their numbers."""
        connections = self._connections.copy()
        return tuple(connections[replica].peer for replica in sorted(connections))

    def queued_bytes(self, peer: int) -> int:
        """What has been sent to this peer but has not reached the kernel; 0 if not connected."""
        connection = self._connections.get(peer)
        return 0 if connection is None else connection.queued_bytes

    def queued_frames(self, peer: int) -> int:
        connection = self._connections.get(peer)
        return 0 if connection is None else connection.queued_frames

    def drop(self, peer: int, why: str, line: Line | None = None) -> None:
        """End the connection with this peer, if there is one, and if it is this one. While wanted, it is made
        anew."""
        with self._lock:
            connection = self._connections.get(peer)
            if connection is not None and line in (None, connection.line):
                self._doom([connection], why)
                self._call()

    def announce(self) -> None:
        """The calling thread is about to `attend`: from now on `call_guest` reaches it."""
        self._called = False
        self._guest = threading.get_ident()

    def attend(self, timeout_s: float) -> None:
        """Do the I/O thread's work in the calling thread, until something has happened or time is up.

        For a thread that waits for what comes over the mesh: a step of a small model takes a millisecond, and
        handing its frames from thread to thread would take as long."""
        try:
            if not self._helm.acquire(blocking=False):
                with self._lock:
                    if not self._closed:
                        self._poller.ring()
                self._helm.acquire()
            try:
                if not self._closing:
                    # The I/O thread may have heard the bell that was meant for us.
                    self._turn(0.0 if self._called else timeout_s)
            finally:
                self._helm.release()
        finally:
            self._guest_left_at = time.monotonic()
            self._guest = None

    def call_guest(self) -> None:
        """End the present or announced `attend` of another thread soon."""
        if self._guest is not None and self._guest != threading.get_ident():
            self._called = True
            with self._lock:
                if not self._closed:
                    self._poller.ring()

    def close(self, flush_within_s: float = FLUSH_WITHIN_S) -> None:
        """Send what is queued, for at most so long, and end everything. Any number of times."""
        with self._lock:
            self._flush_within_s = flush_within_s
            self._closing = True
            if not self._closed:
                self._call()
            thread = self._thread
        if thread is None:
            self._let_go()
        elif thread is not threading.current_thread():
            thread.join()

    def _call(self) -> None:
        """Have the I/O thread carry out what was decided. Under the lock, or the bell might be gone."""
        self._changed = True
        if not self._closed:
            self._poller.ring()

    def _doom(self, connections: list[Connection], why: str) -> None:
        """Take connections out of use; the I/O thread closes them."""
        for connection in connections:
            self._connections.pop(connection.peer.replica, None)
            connection.stop()
            self._doomed.append((connection, why))

    def _wants(self, peer: Member) -> bool:
        wanted = self._wanted.get(peer.replica)
        return wanted is not None and life_of(wanted) == life_of(peer)

    # From here on: the I/O thread.

    def _run(self) -> None:
        try:
            while not self._closing:
                if self._guest is not None or time.monotonic() - self._guest_left_at < GUEST_RETURNS_S:
                    time.sleep(GUEST_RETURNS_S)
                    continue
                with self._helm:
                    self._turn(None)
            with self._helm:
                self._say_farewell()
        finally:
            self._let_go()

    def _turn(self, timeout_s: float | None) -> None:
        """Wait for something to happen, and deal with it. For whoever is at the helm."""
        try:
            wait_s = self._door.wait_s()
            bounds = [bound for bound in (wait_s, timeout_s) if bound is not None]
            self._poller.turn(min(bounds, default=None))
            if self._changed:
                self._carry_out()
            if wait_s is not None:
                self._door.tick()
        except Exception:
            # Peers must not suffer from a mistake here that one of them has brought to light.
            log.exception("the mesh goes on after an error of its own")

    def _carry_out(self) -> None:
        with self._lock:
            self._changed = False
            incarnation = self._incarnation
            wanted = list(self._wanted.values())
        self._end_doomed()
        if incarnation is not None and incarnation != self._living:
            self._living = incarnation
            self._door.live(Credentials(self._job, self._token, self.replica, incarnation))
        self._door.want(wanted)
        for member in wanted:
            if member.replica < self.replica:
                self._door.dial(member)

    def _admit(self, sock: socket.socket, peer: Member, incarnation: int) -> None:
        """A connection has been made; the sink hears of it, and after that of what comes through it."""
        # The sink must not hear of a new connection before it has heard the end of the one before.
        self._end_doomed()
        for old in [connection for connection in self._since if connection.peer.replica == peer.replica]:
            # There would be no new one if the peer's end of the old one were alive.
            self._end(old, "a new connection took its place", replaced=True)
        line = Line(peer, incarnation, next(self._numbers))
        incoming = Incoming(line, self._sink, self._scratch, self._max_payload_bytes)
        connection = Connection(sock, line, incoming, self._poller)
        with self._lock:
            fits = self._wants(peer) and self._incarnation == incarnation
            if fits and not self._closing:
                connection.watch(partial(self._serve, connection))
                self._connections[peer.replica] = connection
                self._since[connection] = time.monotonic()
        if connection not in self._since:
            # It was decided otherwise a moment ago, and what follows from that is about to be carried out.
            sock.close()
            self._door.gone(life_of(peer), 0.0)
            return
        try:
            self._sink.connected(line)
        except Exception:
            log.exception("this process can not deal with its connection to %s", connection.name)
            self._end(connection, "this process could not deal with the connection; its log says why")

    def _serve(self, connection: Connection, events: int) -> None:
        try:
            connection.serve(events)
        except (ConnectionError, ProtocolError) as error:
            if isinstance(error, ProtocolError):
                log.warning("%s was cut off: %s", connection.name, error)
            self._end(connection, str(error))
        except Exception as error:
            log.exception("the connection to %s failed in an unforeseen way", connection.name)
            self._end(connection, f"an error of this process: {error!r}")

    def _end_doomed(self) -> None:
        with self._lock:
            doomed, self._doomed = self._doomed, []
        for connection, why in doomed:
            self._end(connection, why)

    def _end(self, connection: Connection, why: str, *, replaced: bool = False) -> None:
        """Once for each connection, whoever finds out first that it is over."""
        since = self._since.pop(connection, None)
        if since is None:
            return
        with self._lock:
            if self._connections.get(connection.peer.replica) is connection:
                del self._connections[connection.peer.replica]
        connection.close()
        if not replaced:
            self._door.gone(life_of(connection.peer), time.monotonic() - since)
        try:
            self._sink.lost(connection.line, why)
        except Exception:
            log.exception("this process can not deal with the loss of %s", connection.name)

    def _say_farewell(self) -> None:
        """Send what is queued to those that take it, and let the others go."""
        self._door.close()
        self._end_doomed()
        with self._lock:
            staying = list(self._connections.values())
            self._connections.clear()
            until = time.monotonic() + self._flush_within_s
        for connection in staying:
            connection.end()
        while self._since and (left_s := until - time.monotonic()) > 0:
            self._poller.turn(left_s)
        for connection in list(self._since):
            self._end(connection, "this process has closed its mesh")

    def _let_go(self) -> None:
        with self._lock:
            self._closed = True
            self._connections.clear()
            self._poller.close()
            self._listener.close()

    def _abandon(self) -> None:
        """In a forked child: there is no I/O thread here, and the connections are the parent's."""
        for connection in [*self._connections.values(), *self._since]:
            connection.abandon()
        self._lock = locks.lock("mesh")
        self._helm = locks.lock("helm")
        self._thread = None
        self._closing = True
        self._sockets.close_inherited()
        self._let_go()


def _as_bytes(data: memoryview | bytes) -> memoryview:
    view = memoryview(data)
    if not view.c_contiguous:
        raise ValueError("a payload must be contiguous memory: copy it first, or send its rows one by one")
    if view.format == "B" and view.ndim == 1:
        return view
    return view.cast("B") if view.nbytes else memoryview(b"")


_meshes: "weakref.WeakSet[Mesh]" = weakref.WeakSet()


def _close_inherited() -> None:
    for mesh in list(_meshes):
        mesh._abandon()


os.register_at_fork(after_in_child=_close_inherited)
