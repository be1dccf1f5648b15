"""How two processes that have just connected find out which lives they are talking to.

    listener                                        dialler
    challenge                             ──▶
                                          ◀──       answer, as "replica-5.3": life 3 of replica 5
    welcome, hello(2, life 7, to life 3)  ──▶
                                          ◀──       hello(5, life 3, to life 7)

The first three are the handshake of `wire.handshake`: both hold the job's token. The hellos add the lives:
the dialler means one certain life of the listener, since a new process may listen on a dead one's port, and
a listener must not take a dialler's word for a life that the handshake did not prove. Whatever does not fit
ends the connection. One rule is left: the replica with the higher number dials. So two that want each other
at the same moment make one connection and not two, of which each might choose the other one.

A greeting must not keep the I/O thread waiting, so the conversation is a generator that asks for the number
of bytes it needs next. No more than these are taken out of the kernel: what follows belongs to the frames.
"""

import contextlib
import errno
import re
import socket
import time
from collections.abc import Generator
from dataclasses import dataclass, field

from outlast.errors import PeerRejected, ProtocolError
from outlast.mesh.frames import Hello
from outlast.protocol.header import HEADER_BYTES
from outlast.protocol.views import Member
from outlast.wire.address import channel_binding, refuse_self_connection
from outlast.wire.framing import HEADER_BYTES as LENGTH_BYTES
from outlast.wire.framing import frame, payload_length
from outlast.wire.handshake import HANDSHAKE_FRAME_BYTES, ClientHandshake, Handshake, ListenerHandshake

ROLE = "mesh"
_NAME = re.compile(r"replica-(0|[1-9][0-9]{0,9})\.(0|[1-9][0-9]{0,9})")

GREETING_S = 2.0
"""How long a greeting may take, on either side."""


@dataclass(frozen=True)
class Credentials:
    """Who this process is, and the secret that lets it say so."""

    job: str
    token: bytes = field(repr=False)
    replica: int
    incarnation: int


_Script = Generator[int, bytes, Member]


class Greeting:
    """A connection until both ends know each other's life. `advance` returns the peer's life at the end, and
    raises PeerRejected, ProtocolError or OSError if there is to be none."""

    def __init__(
        self,
        sock: socket.socket,
        credentials: Credentials,
        *,
        dialled: Member | None,
    ) -> None:
        self.sock = sock
        self.until = time.monotonic() + GREETING_S
        self.reason = "gone"
        """A word for a counter, should it fail."""
        self._own = credentials
        self._dialled = dialled
        self._script: _Script | None = None
        self._needed = 0
        self._received = bytearray()

    @property
    def incarnation(self) -> int:
        """The life in which this process greets."""
        return self._own.incarnation

    @property
    def begun(self) -> bool:
        """Whether the connection exists, so that words can be exchanged."""
        return self._script is not None

    def advance(self) -> Member | None:
        """Say and hear as much as is possible now."""
        try:
            if self._script is None:
                if not self._is_connected():
                    return None
                self._script = self._answer() if self._dialled is None else self._introduce(self._dialled)
                self._needed = next(self._script)
            while self._fill():
                heard, self._received = bytes(self._received), bytearray()
                self._needed = self._script.send(heard)
        except StopIteration as end:
            peer: Member = end.value
            return peer
        except ProtocolError:
            self.reason = "malformed"
            raise
        return None

    def _is_connected(self) -> bool:
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, "the connection was not made")
        try:
            refuse_self_connection(self.sock)
        except OSError as error:
            if error.errno == errno.ENOTCONN:
                return False
            raise
        return True

    def _fill(self) -> bool:
        """True if all bytes that the script has asked for are there."""
        while len(self._received) < self._needed:
            try:
                chunk = self.sock.recv(self._needed - len(self._received))
            except (BlockingIOError, InterruptedError):
                return False
            if not chunk:
                raise ConnectionError("the connection was closed during the greeting")
            self._received += chunk
        return True

    def _answer(self) -> _Script:
        binding = channel_binding(client=self.sock.getpeername(), server=self.sock.getsockname())
        machine = ListenerHandshake(job=self._own.job, token=self._own.token, binding=binding)
        last_words = yield from self._prove(machine)
        name = _NAME.fullmatch(machine.peer.name)
        if machine.peer.role != ROLE or name is None:
            raise self._refusal("malformed", f"{machine.peer} is no replica")
        life = Member(int(name[1]), int(name[2]))
        if life.replica <= self._own.replica:
            raise self._refusal(
                "direction", f"replica {life.replica} must not dial replica {self._own.replica}"
            )
        # In one piece, since somebody waits for both.
        self._say(last_words + Hello(self._own.replica, self.incarnation, life.incarnation).pack())
        hello = Hello.unpack((yield HEADER_BYTES))
        if hello != Hello(life.replica, life.incarnation, self.incarnation):
            raise self._refusal("life", f"{hello} from {machine.peer.name} does not mean this life")
        return life

    def _introduce(self, dialled: Member) -> _Script:
        binding = channel_binding(client=self.sock.getsockname(), server=self.sock.getpeername())
        name = f"replica-{self._own.replica}.{self.incarnation}"
        machine = ClientHandshake(
            job=self._own.job, token=self._own.token, role=ROLE, name=name, binding=binding
        )
        yield from self._prove(machine)
        hello = Hello.unpack((yield HEADER_BYTES))
        if hello != Hello(dialled.replica, dialled.incarnation, self.incarnation):
            raise self._refusal(
                "life",
                f"replica {dialled.replica} in life {dialled.incarnation} was expected at {dialled.address}, "
                f"and replica {hello.replica} in life {hello.incarnation} answered",
            )
        self._say(Hello(self._own.replica, self.incarnation, dialled.incarnation).pack())
        return dialled

    def _prove(self, machine: Handshake) -> Generator[int, bytes, bytes]:
        """Both sides hold the token; returns the words of the handshake that are still to be said."""
        try:
            words = _framed(machine.start())
            while not machine.done:
                self._say(words)
                length = payload_length((yield LENGTH_BYTES), HANDSHAKE_FRAME_BYTES)
                words = _framed(machine.receive((yield length)))
            return words
        except PeerRejected:
            self.reason = machine.reason
            with contextlib.suppress(OSError):
                self._say(_framed(machine.farewell))
            raise

    def _say(self, words: bytes) -> None:
        # A few hundred bytes always fit a new connection; where they do not, something is wrong with it.
        if words and self.sock.send(words) != len(words):
            raise ConnectionError("the peer took only a part of the greeting")

    def _refusal(self, reason: str, message: str) -> PeerRejected:
        self.reason = reason
        return PeerRejected(message)


def _framed(payloads: list[bytes]) -> bytes:
    return b"".join(map(frame, payloads))
