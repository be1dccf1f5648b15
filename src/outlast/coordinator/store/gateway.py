"""Calls to an etcd cluster over its JSON gateway: HTTP/1.1 on plain asyncio streams.

The gateway is part of every etcd server, and JSON over a socket needs no library in processes that fork. A
call goes to one member after the other until one answers, beginning with the one that did last. What may be
said twice is said again elsewhere; what may not (`once`) is given up as soon as a member may have heard it,
with `OutcomeUnknown`, and whoever called reads what has become of it.

A *stream* is a call with many answers. A member that is stopped, or cut off from us, keeps its connections
and says nothing, so while one waits the member is asked now and then whether it is there. So it is while a
commit waits: what a leader took along when it died is never answered, and etcd itself says so after seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from outlast.errors import OutcomeUnknown, StoreError

CONNECT_WITHIN_S = 1.0
ANSWER_WITHIN_S = 1.0
"""A member that takes longer is asked no more. A lease of two seconds is renewed when a third of it is over,
so another member can still be asked to do that."""
COMMIT_WITHIN_S = 4.0
LOOK_AT_COMMIT_EVERY_S = 0.1
"""How often a member that keeps a commit waiting is asked whether it can still do it."""
PATIENCE_S = 6.0
"""How long one member after the other is asked before a call fails."""
ASK_AGAIN_S = 0.05
ANSWER_MOST_BYTES = 64 << 20
LOOK_EVERY_S = 1.0
GONE_AFTER_S = 3.0
"""The kernel gives up a connection whose other end does not confirm anything for so long."""

_UNAVAILABLE = frozenset({1, 2, 4, 10, 13, 14})
"""gRPC codes of answers that leave open whether it happened: the member asked others, and did not hear."""

JSON = dict[str, Any]


class Refused(StoreError):
    """The cluster understood, and did nothing."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"etcd refused: {message}")
        self.code = code
        self.message = message


class _Unavailable(StoreError):
    """This member cannot say, just now."""


@dataclass(frozen=True)
class Endpoint:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(eq=False)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    given_up: str = ""
    """Why nothing is expected of it any more."""

    def give_up(self, why: str) -> None:
        """End it for whoever waits for an answer."""
        self.given_up = why
        self.writer.transport.abort()

    def close(self) -> None:
        self.writer.close()


class Gateway:
    """One cluster, by the addresses of some of its members."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints = list(endpoints)
        self._idle: dict[Endpoint, list[_Connection]] = {endpoint: [] for endpoint in endpoints}
        self._open: set[_Connection] = set()
        self._closed = False
        self._cluster = ""
        self._terms: dict[Endpoint, int] = {}
        """Which leader of the cluster each member knew of when it last said something, as a number."""

    async def call(
        self,
        path: str,
        body: JSON,
        *,
        once: bool = False,
        everywhere: bool = True,
        within_s: float | None = None,
    ) -> JSON:
        """What the first member says that can say anything. `everywhere`: should one not answer, the next is
        asked. `within_s`: how long one may take, if it is not the usual time."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while True:
            endpoint = self._endpoints[0]
            try:
                return await self._ask(endpoint, path, body, once=once, within_s=within_s)
            except _Unavailable as error:
                self._avoid(endpoint)
                if not everywhere or asyncio.get_running_loop().time() >= deadline:
                    raise StoreError(f"{self} does not answer: {error}") from None
            await asyncio.sleep(ASK_AGAIN_S)

    async def stream(self, path: str, body: JSON) -> AsyncGenerator[JSON, None]:
        """All answers of one member. It raises when that one cannot go on, and never ends otherwise."""
        endpoint = self._endpoints[0]
        try:
            connection = await self._connect(endpoint)
        except _Unavailable as error:
            self._avoid(endpoint)
            raise StoreError(str(error)) from None
        looking = asyncio.ensure_future(self._look_after(endpoint, connection))
        try:
            _write(connection, endpoint, path, body, {"Grpc-Metadata-hasleader": "true"})
            status, headers = await _head(connection)
            if headers.get("transfer-encoding") != "chunked":
                _raise(endpoint, status, await _body(connection, headers))
            async for line in _lines(connection):
                answer = _decode(endpoint, line)
                if "error" in answer:
                    _raise(endpoint, status, line)
                yield self._checked(endpoint, answer.get("result", {}))
            raise _Unavailable(f"{endpoint} ended the stream")
        except (_Unavailable, OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            self._refuse_if_closed()
            self._avoid(endpoint)
            raise StoreError(f"{endpoint}: {_why(error)}") from None
        finally:
            looking.cancel()
            self._drop(connection)

    async def close(self) -> None:
        self._closed = True
        connections, self._open = self._open, set()
        for connection in connections:
            connection.close()
        for connection in connections:
            with contextlib.suppress(OSError):
                await connection.writer.wait_closed()

    def __str__(self) -> str:
        return "etcd at " + ",".join(map(str, sorted(self._endpoints, key=str)))

    async def _ask(
        self, endpoint: Endpoint, path: str, body: JSON, *, once: bool, within_s: float | None = None
    ) -> JSON:
        connection = await self._take(endpoint)
        looking = asyncio.ensure_future(self._look_at_commit(endpoint, connection)) if once else None
        try:
            async with asyncio.timeout(within_s or (COMMIT_WITHIN_S if once else ANSWER_WITHIN_S)):
                _write(connection, endpoint, path, body, {})
                status, headers = await _head(connection)
                answered = await _body(connection, headers)
            if status != 200:
                _raise(endpoint, status, answered)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError, _Unavailable) as error:
            # TimeoutError is an OSError. Somebody may still be at it.
            self._drop(connection)
            self._refuse_if_closed()
            if once:
                self._avoid(endpoint)
                why = connection.given_up or _why(error)
                raise OutcomeUnknown(f"{endpoint} was asked, and {why}") from None
            raise _Unavailable(f"{endpoint}: {_why(error)}") from None
        except BaseException:
            # Cancelled in the middle, or an answer that ends the matter: either way nothing follows on it.
            self._drop(connection)
            raise
        finally:
            if looking is not None:
                looking.cancel()
        self._idle[endpoint].append(connection)
        answer = _decode(endpoint, answered)
        # A call of a service that streams has its one answer in an envelope.
        return self._checked(endpoint, answer["result"] if answer.keys() == {"result"} else answer)

    async def _take(self, endpoint: Endpoint) -> _Connection:
        self._refuse_if_closed()
        while self._idle[endpoint]:
            connection = self._idle[endpoint].pop()
            if not connection.reader.at_eof() and not connection.writer.is_closing():
                return connection
            self._drop(connection)
        return await self._connect(endpoint)

    async def _connect(self, endpoint: Endpoint) -> _Connection:
        self._refuse_if_closed()
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                reader, writer = await asyncio.open_connection(
                    endpoint.host, endpoint.port, limit=ANSWER_MOST_BYTES
                )
        except OSError as error:
            raise _Unavailable(f"{endpoint} cannot be reached ({_why(error)})") from None
        made = writer.get_extra_info("socket")
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(GONE_AFTER_S * 1000))
        connection = _Connection(reader, writer)
        self._open.add(connection)
        return connection

    async def _look_after(self, endpoint: Endpoint, connection: _Connection) -> None:
        """End a stream whose member is not there any more."""
        missed = 0
        while missed < 2:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                await self._ask(endpoint, "/v3/maintenance/status", {}, once=False)
                missed = 0
            except StoreError:
                missed += 1
        connection.give_up("it is not there any more")

    async def _look_at_commit(self, endpoint: Endpoint, connection: _Connection) -> None:
        """End the wait for a commit that this member will not answer in time, or not at all: another leader
        has come meanwhile, or there is none for long, or the member is not there itself."""
        term = self._terms.get(endpoint, 0)
        leaderless = 0
        while leaderless * LOOK_AT_COMMIT_EVERY_S < ANSWER_WITHIN_S:
            await asyncio.sleep(LOOK_AT_COMMIT_EVERY_S)
            try:
                status = await self._ask(endpoint, "/v3/maintenance/status", {}, once=False)
            except StoreError:
                connection.give_up("it is not there any more")
                return
            newest = self._terms.get(endpoint, 0)
            term = term or newest
            if newest != term:
                # A member that waited for a leader does what it was asked once there is one.
                await asyncio.sleep(LOOK_AT_COMMIT_EVERY_S)
                connection.give_up("another member leads since")
                return
            leaderless = 0 if int(status.get("leader", 0)) else leaderless + 1
        connection.give_up("it knows of no leader")

    def _avoid(self, endpoint: Endpoint) -> None:
        """Ask the next one first from here on."""
        if self._endpoints[0] == endpoint:
            self._endpoints.append(self._endpoints.pop(0))

    def _drop(self, connection: _Connection) -> None:
        self._open.discard(connection)
        connection.close()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")

    def _checked(self, endpoint: Endpoint, answer: JSON) -> JSON:
        header = answer.get("header", {})
        if term := int(header.get("raft_term", 0)):
            self._terms[endpoint] = term
        cluster = header.get("cluster_id", "")
        self._cluster = self._cluster or cluster
        if cluster and cluster != self._cluster:
            raise StoreError(
                f"{endpoint} belongs to another etcd cluster than the others of {self}: name the members of "
                "one cluster"
            )
        return answer


def _write(
    connection: _Connection, endpoint: Endpoint, path: str, body: JSON, more: Mapping[str, str]
) -> None:
    data = msgspec.json.encode(body)
    head = [f"POST {path} HTTP/1.1", f"Host: {endpoint}", "Content-Type: application/json"]
    head += [f"Content-Length: {len(data)}", *(f"{name}: {value}" for name, value in more.items())]
    connection.writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + data)


async def _head(connection: _Connection) -> tuple[int, dict[str, str]]:
    lines = (await connection.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    protocol, _, rest = lines[0].partition(" ")
    if not protocol.startswith("HTTP/1."):
        raise ValueError("this is no HTTP server")
    pairs = (line.partition(":") for line in lines[1:] if line)
    return int(rest[:3]), {name.lower(): value.strip() for name, _, value in pairs}


async def _body(connection: _Connection, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding") == "chunked":
        return b"".join([line async for line in _chunks(connection)])
    size = int(headers.get("content-length", "0"))
    if not 0 <= size <= ANSWER_MOST_BYTES:
        raise ValueError(f"an answer of {size} bytes is too large")
    return await connection.reader.readexactly(size)


async def _chunks(connection: _Connection) -> AsyncGenerator[bytes, None]:
    reader = connection.reader
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        if size > ANSWER_MOST_BYTES:
            raise ValueError(f"an answer of {size} bytes is too large")
        yield await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")


async def _lines(connection: _Connection) -> AsyncGenerator[bytes, None]:
    """One JSON object each, however they are cut into chunks."""
    rest = b""
    async for chunk in _chunks(connection):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > ANSWER_MOST_BYTES:
            raise ValueError("an answer is too large")
        for line in lines:
            if line:
                yield line


def _decode(endpoint: Endpoint, answer: bytes) -> JSON:
    try:
        decoded = msgspec.json.decode(answer)
    except msgspec.DecodeError:
        decoded = None
    if not isinstance(decoded, dict):
        raise StoreError(f"{endpoint} does not answer like etcd: {answer[:80]!r}")
    return decoded


def _raise(endpoint: Endpoint, status: int, answered: bytes) -> None:
    try:
        answer = msgspec.json.decode(answered)
        answer = answer["error"] if isinstance(answer.get("error"), dict) else answer
        code = int(answer.get("grpc_code", answer.get("code", 2)))
        message = str(answer.get("message") or answer.get("error") or "no reason")
    except (msgspec.DecodeError, AttributeError, ValueError):
        raise StoreError(f"{endpoint} does not answer like etcd (HTTP status {status}): is it one?") from None
    if code in _UNAVAILABLE:
        raise _Unavailable(f"{endpoint}: {message}")
    raise Refused(code, message)


def _why(error: Exception) -> str:
    match error:
        case TimeoutError():
            return "it did not answer in time"
        case asyncio.IncompleteReadError() | EOFError():
            return "the connection was closed"
        case OSError():
            # Those of a resolver have numbers of their own, below zero.
            known = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
            return known or str(error) or type(error).__name__
    return str(error) or type(error).__name__
