"""Where one message ends and the next begins: a 4-byte big-endian length, then that many bytes.

TCP delivers a stream of bytes and cuts it wherever it likes; `FrameDecoder` puts the messages together again.
It does no I/O, so any way of cutting can be tested.

The length is the first thing a stranger gets to say, so it is the first thing to distrust: a frame that
claims to be longer than the limit is refused when its four bytes have been read. None of its payload is kept,
and a decoder that has refused once refuses everything after, because it no longer knows where frames begin.
"""

from outlast.errors import ProtocolError

HEADER_BYTES = 4
MAX_FRAME_BYTES = 2 << 20
"""Control messages are some hundred bytes; what is known of four thousand replicas still fits well."""


def frame(payload: bytes, max_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """The payload with its length in front. Too long is the sender's mistake, hence ValueError here, where
    the stack names the culprit, rather than at the peer, which could only hang up."""
    if len(payload) > max_bytes:
        raise ValueError(f"a message of {len(payload)} bytes is over the limit of {max_bytes} bytes")
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


def payload_length(header: bytes, max_bytes: int) -> int:
    """What a header promises, if it may: the one place that compares a peer's length with the limit."""
    length = int.from_bytes(header, "big")
    if length > max_bytes:
        raise ProtocolError(f"the peer announced a frame of {length} bytes; the limit is {max_bytes} bytes")
    return length


class FrameDecoder:
    """Turns chunks of bytes, cut anywhere, into whole payloads."""

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_bytes = max_bytes
        self._header = bytearray()
        self._payload = bytearray()
        self._missing: int | None = None
        """How many bytes the current payload still lacks; None while its header is not complete."""
        self._refused: str | None = None

    @property
    def mid_frame(self) -> bool:
        """True if the stream must not end here: a part of a frame has arrived."""
        return bool(self._header)

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that `data` completes. Raises ProtocolError for an over-long frame; payloads before it
        in the same chunk are lost with it, for nothing from such a peer needs to be heard."""
        if self._refused is not None:
            raise ProtocolError(self._refused)
        length = len(data) - HEADER_BYTES
        if not self._header and length == int.from_bytes(data[:HEADER_BYTES], "big") <= self._max_bytes:
            # Nearly always it is one message, and all of it.
            return [data[HEADER_BYTES:]]
        payloads: list[bytes] = []
        rest = memoryview(data)
        while rest:
            if self._missing is None:
                wanted = HEADER_BYTES - len(self._header)
                self._header += rest[:wanted]
                rest = rest[wanted:]
                if len(self._header) < HEADER_BYTES:
                    break
                self._missing = self._announced()
            taken = rest[: self._missing]
            self._payload += taken
            self._missing -= len(taken)
            rest = rest[len(taken) :]
            if self._missing == 0:
                payloads.append(bytes(self._payload))
                self._header.clear()
                self._payload.clear()
                self._missing = None
        return payloads

    def _announced(self) -> int:
        try:
            return payload_length(bytes(self._header), self._max_bytes)
        except ProtocolError as error:
            self._refused = str(error)
            raise
