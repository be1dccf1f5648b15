"""What is what in an image: the parts of a training state, and which tensors each of them has.

An image holds either a whole training state, in five parts, or weights alone: what was imported from a file
of another tool, of which nobody knows more than names and values. Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Iterator

from outlast.errors import ProtocolError
from outlast.state.contents import Image
from outlast.state.nodes import DictNode, Node, NumpyNode, SequenceNode, TensorNode, decode

TRAINING = ("parameters", "buffers", "modules", "optimizers", "extras")
WEIGHTS = "weights"

Path = tuple[str | int, ...]


def parts_of(plain: bytes) -> dict[str, Node]:
    """The parts by name: all of TRAINING, or WEIGHTS alone."""
    root = decode(plain)
    items = root.items if isinstance(root, DictNode) else []
    parts = {key: node for key, node in items if isinstance(key, str)}
    if len(items) != len(parts) or parts.keys() not in (set(TRAINING), {WEIGHTS}):
        raise ProtocolError("the state does not have the parts that a training state has")
    return parts


def holds_weights_only(image: Image) -> bool:
    return WEIGHTS in parts_of(image.plain)


def model_tensors(image: Image) -> dict[str, int]:
    """The model's parameters and buffers: which tensor of the image each of them is, by name."""
    parts = parts_of(image.plain)
    found: dict[str, int] = {}
    for part in (WEIGHTS,) if WEIGHTS in parts else ("parameters", "buffers"):
        node = parts[part]
        for name, value in node.items if isinstance(node, DictNode) else ():
            if not isinstance(name, str) or not isinstance(value, TensorNode) or name in found:
                raise ProtocolError(f"the {part} of the state are not tensors by name")
            if not 0 <= value.index < len(image.entries):
                raise ProtocolError(f"the state refers to tensor {value.index} of {len(image.entries)}")
            found[name] = value.index
    return found


def tensors_within(node: Node, path: Path = ()) -> Iterator[tuple[Path, int]]:
    """All tensors in a part, and where in it each of them is."""
    match node:
        case TensorNode() | NumpyNode():
            yield path, node.index
        case DictNode():
            for key, item in node.items:
                yield from tensors_within(item, (*path, key if isinstance(key, (str, int)) else repr(key)))
        case SequenceNode():
            for index, item in enumerate(node.items):
                yield from tensors_within(item, (*path, index))
