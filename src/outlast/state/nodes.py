"""The vocabulary of plain state: what a nested value looks like between `flatten` and the wire.

A node is either a value that MessagePack knows by itself, or one of a few tagged structs. The set is closed
and every field has a type, so decoding accepts exactly what encoding makes. Whatever else is wrong with the
bytes, a string for a number, an unknown tag, brackets nested a million deep, comes out as `ProtocolError`.
"""

from __future__ import annotations

from typing import Literal, Union

import msgspec

from outlast.errors import ConfigError, ProtocolError

MAX_PLAIN_BYTES = 32 << 20
"""Numbers in bulk belong into tensors, which are neither parsed nor held twice."""

_REASON_CHARS = 160


class TensorNode(msgspec.Struct, tag="tensor", array_like=True, frozen=True, forbid_unknown_fields=True):
    index: int


class NumpyNode(msgspec.Struct, tag="numpy", array_like=True, frozen=True, forbid_unknown_fields=True):
    """A numpy array, or with `scalar` one of numpy's numbers; its values travel as a tensor."""

    index: int
    scalar: bool


class BytesNode(msgspec.Struct, tag="bytes", array_like=True, frozen=True, forbid_unknown_fields=True):
    """Bytes need a tag, since msgspec does not tell them from a str where either may stand."""

    content: bytes


class IntNode(msgspec.Struct, tag="int", array_like=True, frozen=True, forbid_unknown_fields=True):
    """An int beyond MessagePack's 64 bits: little-endian two's complement."""

    digits: bytes


class DtypeNode(msgspec.Struct, tag="dtype", array_like=True, frozen=True, forbid_unknown_fields=True):
    name: str


class DeviceNode(msgspec.Struct, tag="device", array_like=True, frozen=True, forbid_unknown_fields=True):
    name: str


class SequenceNode(msgspec.Struct, tag="items", array_like=True, frozen=True, forbid_unknown_fields=True):
    kind: Literal["list", "tuple", "size", "set", "frozenset"]
    items: list[Node]


class DictNode(msgspec.Struct, tag="dict", array_like=True, frozen=True, forbid_unknown_fields=True):
    kind: Literal["dict", "ordered", "counter"]
    items: list[tuple[Node, Node]]


Node = Union[  # noqa: UP007 - msgspec resolves the forward references of the structs above through this name.
    None,
    bool,
    int,
    float,
    str,
    BytesNode,
    TensorNode,
    NumpyNode,
    IntNode,
    DtypeNode,
    DeviceNode,
    SequenceNode,
    DictNode,
]


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Node] = msgspec.msgpack.Decoder(Node)


def encode(plain: Node) -> bytes:
    encoded = _encoder.encode(plain)
    if len(encoded) > MAX_PLAIN_BYTES:
        raise ConfigError(
            f"The state has {len(encoded)} bytes of plain Python values, which is over the limit of "
            f"{MAX_PLAIN_BYTES}. Keep long lists of numbers as tensors or numpy arrays instead."
        )
    return encoded


def decode(encoded: bytes) -> Node:
    """The nodes, or ProtocolError."""
    if len(encoded) > MAX_PLAIN_BYTES:
        raise ProtocolError(f"{len(encoded)} bytes of plain state are over the limit of {MAX_PLAIN_BYTES}")
    try:
        return _decoder.decode(encoded)
    except Exception as error:
        # Deep nesting and broken UTF-8 surface as other errors than msgspec's own; none of them may escape.
        raise malformed("plain state", error) from error


def malformed(what: str, error: Exception) -> ProtocolError:
    """What to raise for bytes that cannot be read; the reason may quote them, so it can forge no lines."""
    reason = "".join(char if char.isprintable() else "?" for char in str(error)[:_REASON_CHARS])
    return ProtocolError(f"malformed {what}: {reason}")
