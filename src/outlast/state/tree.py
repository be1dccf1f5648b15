"""Nested Python values as MessagePack plus a list of tensors, without pickle.

State dicts are nestings of dicts, lists and tuples with tensors and plain values at the leaves. `flatten`
takes the tensors out, so that their bytes can be moved without being copied through an encoder, and turns the
rest into nodes: values that MessagePack knows are themselves, everything else is a small tagged struct. What
comes back from `unflatten` has the types that went in: a tuple is a tuple, an int key is an int, an int has
any size, a NaN is a NaN. Three things are simplified on purpose: a `defaultdict` comes back as a dict (its
factory is code), a Parameter as a plain tensor, and a tensor that occurs twice is stored twice.

The set of types is closed. A value of any other type is refused where it is captured, with its path and what
to do about it, because the alternative is a joiner that finds out an hour later. Bytes that no `flatten` can
have made are refused where they are decoded, with `ProtocolError`, whatever is wrong with them.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from outlast.errors import ConfigError, ProtocolError
from outlast.state.dtypes import DTYPES
from outlast.state.nodes import (
    BytesNode,
    DeviceNode,
    DictNode,
    DtypeNode,
    IntNode,
    Node,
    NumpyNode,
    SequenceNode,
    TensorNode,
    encode,
    malformed,
)

MAX_DEPTH = 64
"""State dicts are about five deep. A value that contains itself has no end, and meets this bound."""

_KEY_CHARS = 60
_INT64 = range(-(1 << 63), 1 << 63)


class Flat(NamedTuple):
    """A value taken apart: the nodes, the tensors that they refer to by index, and where each one was."""

    plain: Node
    tensors: list[Tensor]
    paths: list[str]


_SAME_IN_MSGPACK = frozenset({type(None), bool, float})
_KEY_TYPES = frozenset({type(None), bool, int, float, str, bytes, torch.dtype})
_TENSOR_TYPES = frozenset({Tensor, torch.nn.Parameter})
_SEQUENCES: dict[type, Literal["list", "tuple", "size", "set", "frozenset"]] = {
    list: "list",
    tuple: "tuple",
    torch.Size: "size",
    set: "set",
    frozenset: "frozenset",
}
_DICTS: dict[type, Literal["dict", "ordered", "counter"]] = {
    dict: "dict",
    defaultdict: "dict",
    OrderedDict: "ordered",
    Counter: "counter",
}


def flatten(value: object, root: str = "state", first_index: int = 0) -> Flat:
    """Take `value` apart. Raises ConfigError for what cannot be held, with a path that begins with `root`.

    The tensors are numbered from `first_index`, so that parts can be flattened one by one and kept together.
    """
    flattening = _Flattening(root, first_index)
    plain = flattening.node(value)
    return Flat(plain, flattening.tensors, flattening.paths)


def unflatten(plain: Node, tensors: Sequence[Tensor]) -> Any:
    """Put a value together again. Raises ProtocolError if the nodes do not fit each other or the tensors."""
    return _build(plain, tensors, 0)


class _Flattening:
    def __init__(self, root: str, first_index: int) -> None:
        self.tensors: list[Tensor] = []
        self.paths: list[str] = []
        self._root = root
        self._first_index = first_index
        self._keys: list[object] = []

    def node(self, value: object) -> Node:
        kind = type(value)
        if kind in _SAME_IN_MSGPACK:
            return value  # type: ignore[return-value]
        if isinstance(value, int) and kind is int:
            return _int_node(value)
        if isinstance(value, str) and kind is str:
            return self._text(value)
        if isinstance(value, bytes) and kind is bytes:
            return BytesNode(value)
        if kind in _DICTS:
            return self._dict(value)  # type: ignore[arg-type]
        if kind in _SEQUENCES:
            return self._sequence(value)  # type: ignore[arg-type]
        if isinstance(value, Tensor):
            return TensorNode(self._tensor(value))
        if isinstance(value, torch.dtype):
            return DtypeNode(str(value).removeprefix("torch."))
        if isinstance(value, torch.device):
            return DeviceNode(str(value))
        return self._numpy(value)

    def _text(self, value: str) -> str:
        try:
            value.encode()
        except UnicodeEncodeError:
            self._refuse("is a string that is not valid Unicode", "Keep it as bytes.")
        return value

    def _dict(self, value: dict[object, object]) -> DictNode:
        items: list[tuple[Node, Node]] = []
        for key, item in value.items():
            self._enter(key)
            if not _may_be_key(key):
                self._refuse(
                    f"has a key of type {_type_name(key)}",
                    "Use keys of type str, int, float, bool, bytes, None or tuples of these.",
                )
            items.append((self.node(key), self.node(item)))
            self._keys.pop()
        return DictNode(_DICTS[type(value)], items)

    def _sequence(self, value: Iterable[object]) -> SequenceNode:
        kind = _SEQUENCES[type(value)]
        nodes: list[Node] = []
        for index, item in enumerate(value):
            self._enter(index)
            if kind in ("set", "frozenset") and not _may_be_key(item):
                self._refuse(f"is a {_type_name(item)} in a set", "Keep it in a list.")
            nodes.append(self.node(item))
            self._keys.pop()
        if kind in ("set", "frozenset"):
            # The order of a set differs between processes; that of its encoded elements does not.
            nodes.sort(key=encode)
        return SequenceNode(kind, nodes)

    def _tensor(self, value: Tensor) -> int:
        name = str(value.dtype).removeprefix("torch.")
        if type(value) not in _TENSOR_TYPES:
            lazy = isinstance(value, (UninitializedParameter, UninitializedBuffer))
            fix = "Run one batch through the model first." if lazy else "Convert it to a plain torch.Tensor."
            self._refuse(f"is a {_type_name(value)}", fix)
        if value.layout != torch.strided:
            self._refuse(f"is a tensor of layout {value.layout}", "Call .to_dense() on it.")
        if value.is_meta:
            self._refuse("is a tensor on the meta device, which has no values", "Materialise it first.")
        if name not in DTYPES:
            self._refuse(f"is a tensor of {value.dtype}", "Convert it to an ordinary dtype.")
        self.tensors.append(value)
        self.paths.append(self._path())
        return self._first_index + len(self.tensors) - 1

    def _numpy(self, value: object) -> NumpyNode:
        # Not imported: where no numpy is loaded there can be no value of its types.
        numpy = sys.modules.get("numpy")
        if numpy is None or not (type(value) is numpy.ndarray or isinstance(value, numpy.generic)):
            self._refuse(
                f"is {_in_words(value)}",
                "The state may hold tensors, numpy arrays, numbers, strings, bytes, None and dicts, lists, "
                "tuples and sets of these: leave it out of the state dict, or convert it.",
            )
        try:
            # A copy, since arrays may be read-only or have negative strides, which torch does not take.
            tensor = torch.from_numpy(numpy.array(value, order="C"))
        except (TypeError, ValueError):
            self._refuse(
                f"is a numpy value of dtype {value.dtype}",  # type: ignore[attr-defined]
                "Convert it to a native bool, int, float or complex dtype.",
            )
        return NumpyNode(self._tensor(tensor), isinstance(value, numpy.generic))

    def _enter(self, key: object) -> None:
        self._keys.append(key)
        if len(self._keys) > MAX_DEPTH:
            del self._keys[4:]
            self._refuse(
                f"goes on deeper than {MAX_DEPTH} levels or contains itself",
                "Keep a flatter value in the state.",
            )

    def _path(self) -> str:
        return self._root + "".join(f"[{_shortened(repr(key))}]" for key in self._keys)

    def _refuse(self, what: str, fix: str) -> NoReturn:
        raise ConfigError(f"{self._path()} {what}, which cannot be sent to other replicas. {fix}")


def _build(plain: Node, tensors: Sequence[Tensor], depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise ProtocolError(f"the plain state is nested deeper than {MAX_DEPTH} levels")
    match plain:
        case DictNode():
            return _build_dict(plain, tensors, depth)
        case SequenceNode():
            return _build_sequence(plain, tensors, depth)
        case TensorNode():
            return _tensor_at(plain.index, tensors)
        case NumpyNode():
            return _build_numpy(plain, tensors)
        case BytesNode():
            return plain.content
        case IntNode():
            return int.from_bytes(plain.digits, "little", signed=True)
        case DtypeNode():
            dtype = getattr(torch, plain.name, None)
            if not isinstance(dtype, torch.dtype):
                raise ProtocolError(f"this torch has no dtype {plain.name[:_KEY_CHARS]!r}")
            return dtype
        case DeviceNode():
            try:
                return torch.device(plain.name)
            except Exception as error:
                raise malformed("device", error) from error
    return plain


def _build_dict(plain: DictNode, tensors: Sequence[Tensor], depth: int) -> dict[Any, Any]:
    makers: dict[str, Callable[[], dict[Any, Any]]] = {
        "dict": dict,
        "ordered": OrderedDict,
        "counter": Counter,
    }
    value = makers[plain.kind]()
    for key_node, item in plain.items:
        key = _build(key_node, tensors, depth + 1)
        if not _may_be_key(key) or key in value:
            raise ProtocolError(f"a dict of the state has a key that is unfit or there twice: {_quoted(key)}")
        value[key] = _build(item, tensors, depth + 1)
    return value


def _build_sequence(plain: SequenceNode, tensors: Sequence[Tensor], depth: int) -> Any:
    items = [_build(item, tensors, depth + 1) for item in plain.items]
    match plain.kind:
        case "list":
            return items
        case "tuple":
            return tuple(items)
        case "size":
            if not all(type(item) is int and item in _INT64 for item in items):
                raise ProtocolError("a torch.Size of the state holds something other than sizes")
            return torch.Size(items)
    unique = set(items) if all(map(_may_be_key, items)) else set()
    if len(unique) != len(items):
        raise ProtocolError("a set of the state has elements that are unfit or there twice")
    return frozenset(unique) if plain.kind == "frozenset" else unique


def _build_numpy(plain: NumpyNode, tensors: Sequence[Tensor]) -> Any:
    tensor = _tensor_at(plain.index, tensors)
    try:
        array = tensor.detach().cpu().numpy()
    except (TypeError, RuntimeError) as error:
        raise malformed("numpy value", error) from error
    if plain.scalar and array.ndim:
        raise ProtocolError(f"a numpy number of the state has the shape {tuple(array.shape)}")
    return array[()] if plain.scalar else array


def _tensor_at(index: int, tensors: Sequence[Tensor]) -> Tensor:
    if not 0 <= index < len(tensors):
        raise ProtocolError(f"the state refers to tensor {index} of {len(tensors)}")
    return tensors[index]


def _int_node(value: int) -> int | IntNode:
    if value in _INT64:
        return value
    return IntNode(value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))


def _may_be_key(value: object) -> bool:
    if type(value) is tuple:
        return all(map(_may_be_key, value))
    return type(value) in _KEY_TYPES


def _in_words(value: object) -> str:
    if callable(value) and not isinstance(value, type):
        name = getattr(value, "__qualname__", None)
        if name:
            return f"a {_type_name(value)} ({_shortened(name)})"
    return f"a value of type {_type_name(value)}"


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _shortened(text: str) -> str:
    return text if len(text) <= _KEY_CHARS else f"{text[:_KEY_CHARS]}…"


def _quoted(key: object) -> str:
    return _shortened(repr(key)) if _may_be_key(key) else _type_name(key)
