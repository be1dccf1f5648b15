"""A proxy in front of an HTTP server that misbehaves on demand.

    with FaultyProxy(server.port) as proxy:
        proxy.misbehave(Fault.SLOW_DOWN, times=3)   # the next three requests, then it is healthy again
        ...
        assert proxy.requests == [("PUT", "/bucket/key")] * 4

Each request has its own connection to the server and back; that is slow, and makes it easy to break one.
"""

import contextlib
import enum
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from patience import PATIENCE_S


class Fault(enum.Enum):
    ERROR = "HTTP 500"
    SLOW_DOWN = "HTTP 503, as a busy S3 answers"
    DENY = "HTTP 403"
    NO_BUCKET = "HTTP 404, as S3 answers when the bucket is missing"
    FULL = "HTTP 507"
    DROP_REQUEST = "the connection breaks before the server has the whole request"
    DROP_ANSWER = "the server does what it was asked, but the connection breaks before it can say so"
    DROP_IN_BODY = "the connection breaks in the middle of the answer's body"
    HANG = "no answer, until the proxy is closed"
    DELAY = "an answer, but late"


_ANSWERS = {
    Fault.ERROR: ("500 Internal Server Error", "InternalError"),
    Fault.SLOW_DOWN: ("503 Slow Down", "SlowDown"),
    Fault.DENY: ("403 Forbidden", "AccessDenied"),
    Fault.NO_BUCKET: ("404 Not Found", "NoSuchBucket"),
    Fault.FULL: ("507 Insufficient Storage", "QuotaExceeded"),
}


class Request(NamedTuple):
    method: str
    path: str


class FaultyProxy:
    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.requests: list[Request] = []
        self._faults: deque[tuple[Fault, str | None]] = deque()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def __enter__(self) -> "FaultyProxy":
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        # Closing alone would not wake the thread that accepts.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def misbehave(self, fault: Fault, times: int = 1, *, method: str | None = None) -> None:
        """The next `times` requests (of this method only, if one is given) suffer this fault."""
        with self._lock:
            self._faults.extend([(fault, method)] * times)

    def behave(self) -> None:
        """It is healthy from now on."""
        with self._lock:
            self._faults.clear()

    def _start(self, what: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=what, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self._closed.is_set():
                client, _ = self._listener.accept()
                self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        client.settimeout(PATIENCE_S)
        with client, contextlib.suppress(OSError, ConnectionError):
            head, body = _read_request(client)
            method, path = head.split(b" ", 2)[:2]
            request = Request(method.decode(), path.decode().partition("?")[0])
            fault = self._next_fault(request)
            if fault in _ANSWERS:
                client.sendall(_error_answer(*_ANSWERS[fault]))
                return
            if fault is Fault.DROP_REQUEST:
                _reset(client)
                return
            if fault is Fault.HANG:
                self._closed.wait()
                return
            if fault is Fault.DELAY:
                time.sleep(0.1)
            answer = self._ask_server(head, body)
            if fault is Fault.DROP_ANSWER:
                _reset(client)
                return
            if fault is Fault.DROP_IN_BODY:
                middle = answer.index(b"\r\n\r\n") + 4
                client.sendall(answer[: (middle + len(answer)) // 2])
                _reset(client)
                return
            client.sendall(answer)

    def _next_fault(self, request: Request) -> Fault | None:
        with self._lock:
            self.requests.append(request)
            if self._faults and self._faults[0][1] in (None, request.method):
                return self._faults.popleft()[0]
            return None

    def _ask_server(self, head: bytes, body: bytes) -> bytes:
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
        request = b"\r\n".join([*lines, b"Connection: close"]) + b"\r\n\r\n" + body
        with socket.create_connection(("127.0.0.1", self._server_port), 20.0) as server:
            server.sendall(request)
            pieces = []
            while piece := server.recv(1 << 16):
                pieces.append(piece)
        return b"".join(pieces)


def _read_request(client: socket.socket) -> tuple[bytes, bytes]:
    """The head without its empty line, and the body."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += _received(client)
    head, _, rest = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    body = bytearray(rest)
    while len(body) < length:
        body += _received(client)
    return head, bytes(body)


def _received(client: socket.socket) -> bytes:
    data = client.recv(1 << 16)
    if not data:
        raise ConnectionError("the client has gone")
    return data


def _error_answer(status: str, code: str) -> bytes:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>as the test wants it</Message></Error>"
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close"
    return f"{head}\r\n\r\n{body}".encode()


def _reset(client: socket.socket) -> None:
    """A connection that is closed without lingering is reset, and not ended in an orderly way."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
