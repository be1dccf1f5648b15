"""The entries of a training state: each tensor and each plain value of it, by name, with a digest.

One digest tells whether two states are the same; these tell in what they differ. A name is what the entry is
to whoever wrote the script: a parameter, the learning rate of a group, a value in something given as `state`.
Between replicas names and digests travel as short numbers (`protocol/repeating.py`), and each replica knows
the names to its own. Too many entries are taken together by what they belong to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from blake3 import blake3

from outlast.protocol.repeating import PLAIN, packed
from outlast.state.contents import Image
from outlast.state.nodes import DictNode, Node, NumpyNode, SequenceNode, TensorNode, encode
from outlast.state.parts import Path, parts_of

DIGEST_BYTES = 16
SHORT_BYTES = 4
ENTRIES_MOST = 4096
ITEMS_MOST = 64
"""Longer lists are one entry, as long as there are no tensors in them."""
OWN = "outlast."
"""What the names of our own extras begin with."""

Key = tuple[str, Path]
"""The part of the state, and where in it."""


class Entries(NamedTuple):
    """What is in a state: digests of all of it, and what they are digests of."""

    digests: bytes
    keys: dict[int, Key]


def entries_of(image: Image, tensor_digests: Sequence[bytes]) -> Entries:
    """`tensor_digests` are those of the image's tensors, in their order."""
    found: list[tuple[Key, bytes, bool]] = []
    for part, node in parts_of(image.plain).items():
        for path, value in _leaves(node, ()):
            if isinstance(value, TensorNode | NumpyNode):
                found.append(((part, path), tensor_digests[value.index], False))
            else:
                ours = part == "extras" and bool(path) and str(path[0]).startswith(OWN)
                found.append(((part, path), blake3(encode(value)).digest(DIGEST_BYTES), not ours))
    while len(found) > ENTRIES_MOST and any(path for (_, path), _, _ in found):
        found = list(_folded(found))
    keys = {name_of(key, plain=plain): key for key, _, plain in found}
    digests = {name_of(key, plain=plain): _short(digest) for key, digest, plain in found}
    return Entries(packed(digests), keys)


def entries_of_tensors(part: str, digests: Iterable[tuple[str, bytes]]) -> bytes:
    """Those of some of the model's tensors, by name."""
    return packed({name_of((part, (name,)), plain=False): _short(digest) for name, digest in digests})


def name_of(key: Key, *, plain: bool) -> int:
    name = _hashed(key)
    return name | PLAIN if plain else name & ~PLAIN


def in_words(key: Key, parameters: Sequence[str] = (), *, only_optimizer: bool = True) -> str:
    """What the entry is called in messages. `parameters` are the names of those that the optimizer has."""
    part, path = key
    rest = "".join(f"[{step!r}]" for step in path)
    match part, path:
        case "parameters", (name,):
            return f"the parameter {name}"
        case "buffers", (name,):
            return f"the buffer {name}"
        case "optimizers", (optimizer, "groups", group, *what):
            whose = "" if only_optimizer else f" {optimizer!r}"
            which = what[0] if what else "everything"
            return f"{which!r} of parameter group {group} of the optimizer{whose}"
        case "optimizers", (optimizer, "state", int() as position, *what) if position < len(parameters):
            whose = "" if only_optimizer else f" {optimizer!r}"
            which = repr(what[0]) if what else "the state"
            return f"{which} of the optimizer{whose} for {parameters[position]}"
        case "extras", _:
            return f"state{rest}"
        case "modules", _:
            return f"the extra state of the module{rest}"
    return f"{part}{rest}"


@lru_cache(maxsize=1 << 16)
def _hashed(key: Key) -> int:
    return _short(blake3(repr(key).encode()).digest(SHORT_BYTES))


def _short(digest: bytes) -> int:
    return int.from_bytes(digest[:SHORT_BYTES], "little")


def _leaves(node: Node, path: Path) -> Iterator[tuple[Path, Node]]:
    match node:
        case DictNode() if node.items:
            for key, item in node.items:
                yield from _leaves(item, (*path, key if isinstance(key, str | int) else repr(key)))
        case SequenceNode() if node.items and (len(node.items) <= ITEMS_MOST or _has_tensors(node)):
            for index, item in enumerate(node.items):
                yield from _leaves(item, (*path, index))
        case _:
            yield path, node


def _has_tensors(node: Node) -> bool:
    match node:
        case TensorNode() | NumpyNode():
            return True
        case DictNode():
            return any(_has_tensors(item) for _, item in node.items)
        case SequenceNode():
            return any(map(_has_tensors, node.items))
    return False


def _folded(found: list[tuple[Key, bytes, bool]]) -> Iterator[tuple[Key, bytes, bool]]:
    """The same entries, with those at the ends of the longest paths taken together."""
    longest = max(len(path) for (_, path), _, _ in found)
    together: dict[tuple[Key, bool], blake3] = {}
    for (part, path), digest, plain in found:
        short = path[:-1] if len(path) == longest else path
        together.setdefault(((part, short), plain), blake3()).update(digest)
    for (key, plain), whole in together.items():
        yield key, whole.digest(DIGEST_BYTES), plain
