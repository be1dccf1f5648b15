"""What a payload may be: exactly one of a closed set of message types, in MessagePack.

The messages are tagged `msgspec.Struct`s that are defined by those who speak them; a `Codec` is made from the
set of them. Decoding checks every type on the way in, so the code behind it handles only values that its
annotations allow. It can not be made to run code (there is no pickle anywhere), and whatever is wrong with a
payload, an unknown tag, a string for a number, bytes after the end, brackets nested a million deep, comes out
as one `ProtocolError` with a short reason. A peer that sends nonsense costs its own connection, nothing else.
"""

from typing import Generic, TypeVar, Union

import msgspec

from outlast.errors import ProtocolError

M = TypeVar("M", bound=msgspec.Struct)

_REASON_CHARS = 160


class Codec(Generic[M]):
    """Encodes and decodes one family of messages: `Codec[Ping | Pong]((Ping, Pong))`."""

    def __init__(self, types: tuple[type[M], ...]) -> None:
        for kind in types:
            # Without a tag, two types with the same fields could be taken for each other.
            if kind.__struct_config__.tag is None:
                raise TypeError(f"{kind.__name__} has no tag: declare it with `msgspec.Struct, tag=True`")
        self._types = frozenset(types)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(Union[types])  # noqa: UP007

    def encode(self, message: M) -> bytes:
        if type(message) not in self._types:
            raise TypeError(f"{type(message).__name__} is not one of the messages of this connection")
        return self._encoder.encode(message)

    def decode(self, payload: bytes) -> M:
        """The message, or ProtocolError."""
        try:
            return self._decoder.decode(payload)
        except Exception as error:
            # msgspec has its own errors, but broken UTF-8, deep nesting and a struct's own checks surface as
            # others. None of them may escape: the caller drops peers on ProtocolError, and crashes on others.
            raise ProtocolError(f"malformed message: {_printable(str(error))}") from error


def _printable(reason: str) -> str:
    """msgspec quotes the peer's own text, which must not be able to forge lines in a log."""
    return "".join(char if char.isprintable() else "?" for char in reason[:_REASON_CHARS])
