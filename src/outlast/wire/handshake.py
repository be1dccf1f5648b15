"""Mutual proof of membership: both sides show that they hold the job's token, and neither sends it.

    listener                                        client
    challenge(Ns)                         ──▶
                                          ◀──       answer(Nc, role, name, HMAC("client", everything))
    welcome(HMAC("listener", everything)) ──▶

`everything` is the version, the job, both nonces, role, name, and the two addresses of the connection. From
that follows what an attacker who reads, keeps, replays, relays or invents frames can not do:

- *learn the token*: only HMAC-SHA256 values of it travel, over nonces of 32 random bytes;
- *replay an old handshake*: each side's nonce is new for each connection, and each proof covers both;
- *reflect a proof to its author*: the two directions have different labels;
- *pose as the coordinator on its port*: the client wants a proof too;
- *relay between a client and the coordinator*: the addresses would differ (see `address.channel_binding`);
- *claim another role or name in somebody's stead*: they are under the proof, each with its length.

What it can do is be refused. A refusal says "version" or "credentials" and no more: a wrong job and a wrong
token look the same, and comparisons take the same time wherever the difference is. Every frame begins with a
magic word and a version whose place never changes, so two releases can always tell each other their versions.

Both sides are state machines without I/O: payloads in, payloads out. When `receive` raises PeerRejected,
`reason` is a word for a counter, and `farewell` is what to send before hanging up.
"""

import hashlib
import hmac
import re
import secrets
import struct
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from outlast.errors import ConfigError, PeerRejected, ProtocolError
from outlast.wire.codec import Codec

PROTOCOL_VERSION = 1
HANDSHAKE_FRAME_BYTES = 1024
"""A stranger gets no more than this much of our memory."""

MIN_TOKEN_BYTES = 16
_MAGIC = b"outlast\0"
_PREAMBLE = struct.Struct(f">{len(_MAGIC)}sH")
_CLIENT_LABEL = b"outlast handshake: client to listener"
_LISTENER_LABEL = b"outlast handshake: listener to client"

# Names end up in logs and file names, so there is nothing in them that either would interpret.
_ROLE_PATTERN = r"\A[A-Za-z0-9_-]{1,32}\Z"
_NAME_PATTERN = r"\A[A-Za-z0-9_.:@-]{1,128}\Z"

_Bytes32 = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
_Reason = Literal["version", "credentials", "malformed"]


@dataclass(frozen=True)
class Peer:
    """Who is at the other end, as proven by the token. For a client that is always its job's listener."""

    role: str
    name: str


class _Challenge(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="challenge"):
    nonce: _Bytes32


class _Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="answer"):
    nonce: _Bytes32
    role: Annotated[str, msgspec.Meta(pattern=_ROLE_PATTERN)]
    name: Annotated[str, msgspec.Meta(pattern=_NAME_PATTERN)]
    proof: _Bytes32


class _Welcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="welcome"):
    proof: _Bytes32


class _Rejected(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="rejected"):
    reason: _Reason


_Body = _Challenge | _Answer | _Welcome | _Rejected
_codec = Codec[_Body]((_Challenge, _Answer, _Welcome, _Rejected))

_OTHER_JOB = "it belongs to another job or has another token (or something relays the connection)"


class _Handshake:
    """What the two sides share: the secret, the version check, and how to refuse."""

    def __init__(self, *, job: str, token: bytes, binding: bytes, version: int) -> None:
        if len(token) < MIN_TOKEN_BYTES:
            raise ConfigError(f"a token of {len(token)} bytes can be guessed: use one from create_token")
        self.reason = ""
        self.farewell: list[bytes] = []
        self._job = job
        self._token = token
        self._binding = binding
        self._version = version
        self._nonce = secrets.token_bytes(32)
        self._peer: Peer | None = None

    @property
    def done(self) -> bool:
        """True once the other side is proven; there is nothing to trust before."""
        return self._peer is not None

    @property
    def peer(self) -> Peer:
        if self._peer is None:
            raise PeerRejected("the peer has not proven anything yet")
        return self._peer

    def _pack(self, body: _Body) -> bytes:
        return _PREAMBLE.pack(_MAGIC, self._version) + _codec.encode(body)

    def _unpack(self, payload: bytes) -> _Body:
        if self.done or self.reason:
            raise self._refusal("malformed", "the handshake is over, and the peer sent another frame of it")
        if len(payload) < _PREAMBLE.size:
            raise self._refusal("malformed", "the peer does not speak Outlast's protocol")
        magic, version = _PREAMBLE.unpack_from(payload)
        if magic != _MAGIC:
            raise self._refusal("malformed", "the peer does not speak Outlast's protocol")
        if version != self._version:
            self.farewell = [self._pack(_Rejected("version"))]
            raise self._refusal(
                "version",
                f"the peer speaks version {version} of the protocol, this process version {self._version}: "
                "install the same release of Outlast on both sides",
            )
        try:
            return _codec.decode(payload[_PREAMBLE.size :])
        except ProtocolError as error:
            raise self._refusal("malformed", f"the peer sent a malformed handshake ({error})") from error

    def _refusal(self, reason: _Reason, message: str) -> PeerRejected:
        """The error to raise; nothing that the peer has shown before counts any more."""
        self.reason = self.reason or reason
        self._peer = None
        return PeerRejected(message)

    def _proof(self, label: bytes, listener_nonce: bytes, client_nonce: bytes, client: Peer) -> bytes:
        mac = hmac.new(self._token, digestmod=hashlib.sha256)
        version = self._version.to_bytes(2, "big")
        names = (self._job.encode(), client.role.encode(), client.name.encode())
        for part in (label, version, listener_nonce, client_nonce, *names, self._binding):
            # With its length in front, no part can borrow bytes from its neighbour.
            mac.update(len(part).to_bytes(4, "big") + part)
        return mac.digest()


class ListenerHandshake(_Handshake):
    """The side that was connected to."""

    def __init__(
        self, *, job: str, token: bytes, binding: bytes = b"", version: int = PROTOCOL_VERSION
    ) -> None:
        super().__init__(job=job, token=token, binding=binding, version=version)

    def start(self) -> list[bytes]:
        return [self._pack(_Challenge(self._nonce))]

    def receive(self, payload: bytes) -> list[bytes]:
        answer = self._unpack(payload)
        if not isinstance(answer, _Answer):
            raise self._refusal("malformed", "the peer did not answer the challenge")
        client = Peer(answer.role, answer.name)
        expected = self._proof(_CLIENT_LABEL, self._nonce, answer.nonce, client)
        if not hmac.compare_digest(expected, answer.proof):
            self.farewell = [self._pack(_Rejected("credentials"))]
            raise self._refusal("credentials", f"a peer was refused: {_OTHER_JOB}")
        self._peer = client
        return [self._pack(_Welcome(self._proof(_LISTENER_LABEL, self._nonce, answer.nonce, client)))]


class ClientHandshake(_Handshake):
    """The side that connects, and says what it is."""

    def __init__(
        self,
        *,
        job: str,
        token: bytes,
        role: str,
        name: str,
        binding: bytes = b"",
        version: int = PROTOCOL_VERSION,
    ) -> None:
        super().__init__(job=job, token=token, binding=binding, version=version)
        for what, value, pattern in (("role", role, _ROLE_PATTERN), ("name", name, _NAME_PATTERN)):
            if not re.search(pattern, value):
                raise ConfigError(f"{what} {value!r} can not be used on the wire: it must match {pattern}")
        self._self = Peer(role, name)
        self._expected: bytes | None = None

    def start(self) -> list[bytes]:
        return []

    def receive(self, payload: bytes) -> list[bytes]:
        body = self._unpack(payload)
        match body:
            case _Challenge(nonce=nonce) if self._expected is None:
                self._expected = self._proof(_LISTENER_LABEL, nonce, self._nonce, self._self)
                proof = self._proof(_CLIENT_LABEL, nonce, self._nonce, self._self)
                return [self._pack(_Answer(self._nonce, self._self.role, self._self.name, proof))]
            case _Welcome(proof=proof) if self._expected is not None:
                if not hmac.compare_digest(self._expected, proof):
                    raise self._refusal("credentials", f"the listener can not prove itself: {_OTHER_JOB}")
                self._peer = Peer("listener", self._job)
                return []
            case _Rejected(reason="credentials"):
                raise self._refusal("credentials", f"the listener refused this process: {_OTHER_JOB}")
            case _:
                raise self._refusal("malformed", "the listener broke off or mixed up the handshake")


Handshake = ListenerHandshake | ClientHandshake
