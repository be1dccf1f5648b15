"""Small JSON documents that people can read and that nobody can change unnoticed by accident.

A document says its format and its version, and carries a seal: the BLAKE3 hash over everything else in it, in
one canonical spelling. A flipped bit, a lost end or a field that somebody edited by hand is found when it is
read. (The seal is no signature: who may write to the storage may write what they like.)

The seal is checked on what is there, before it is given a meaning. Then documents of an older version are
brought up to date, one version at a time, by the `migrations` of their format.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
from blake3 import blake3

from outlast.errors import CheckpointError, ObjectDamaged
from outlast.state.nodes import malformed

Document = dict[str, Any]
Migrations = Mapping[int, Callable[[Document], Document]]
"""From a version to what makes the next one of it."""

T = TypeVar("T")

_canonical = msgspec.json.Encoder(order="sorted")


def seal_of(document: Document) -> str:
    """Over all but the seal itself."""
    unsealed = {key: value for key, value in document.items() if key != "seal"}
    return blake3(_canonical.encode(unsealed)).hexdigest()


def laid_out(document: Document) -> bytes:
    """As a person would like to read it: rows of tables take a line each."""
    lines = [f"{_text(key)}: {_value(value, '  ')}" for key, value in document.items()]
    return ("{\n  " + ",\n  ".join(lines) + "\n}\n").encode()


def unsealed(encoded: bytes, name: str, kind: type[T], version: int, migrations: Migrations) -> T:
    """The document that `encoded` holds, as a `kind`, whose tag names the format.

    ObjectDamaged for anything that this program cannot have written, CheckpointError for what a newer one
    has written.
    """
    wanted = kind.__struct_config__.tag  # type: ignore[attr-defined]
    try:
        document = msgspec.json.decode(encoded)
    except Exception as error:
        # As everywhere that strangers' bytes are decoded, no error of another type may escape.
        raise ObjectDamaged(f"{name} is not a JSON document ({malformed('JSON', error)})") from error
    if not isinstance(document, dict) or document.get("format") != wanted:
        raise ObjectDamaged(f"{name} is not of the format {wanted}")
    if document.get("seal") != seal_of(document):
        raise ObjectDamaged(f"{name} is damaged: its content does not fit its seal")
    found = document.get("version")
    if type(found) is not int:
        raise ObjectDamaged(f"{name} has no version")
    if found > version:
        raise CheckpointError(
            f"{name} was made by a newer Outlast (format version {found}; this one reads up to {version}). "
            "Update outlast, or use the version that wrote it."
        )
    try:
        for older in range(found, version):
            document = {**migrations[older](document), "version": older + 1}
        return msgspec.convert(document, kind)
    except Exception as error:
        raise ObjectDamaged(f"{name} cannot be understood ({malformed('document', error)})") from error


def _value(value: Any, indent: str) -> str:
    inner = indent + "  "
    if isinstance(value, dict) and value:
        rows = [f"{_text(key)}: {_value(item, inner)}" for key, item in value.items()]
        return _block("{", rows, "}", indent)
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], (dict, list, tuple)):
        return _block("[", [_text(row) for row in value], "]", indent)
    return _text(value)


def _block(opening: str, rows: list[str], closing: str, indent: str) -> str:
    return f"{opening}\n{indent}  " + f",\n{indent}  ".join(rows) + f"\n{indent}{closing}"


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
