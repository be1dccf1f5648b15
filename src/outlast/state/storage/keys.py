"""Which names an object may have.

Keys become paths on a disk and in HDFS, so a key must not lead out of its storage, nor mean two things to two
of them. Hence a small alphabet without capitals (some disks do not tell them apart), and no part that begins
with a dot: such names are a storage's own, for what is not an object yet.
"""

import re

from outlast.errors import UsageError

_KEY = re.compile(r"[a-z0-9_-][a-z0-9._-]*(/[a-z0-9_-][a-z0-9._-]*)*")
_LONGEST_KEY = 512
_LONGEST_PART = 200


def check_key(key: str) -> str:
    """The key itself, or a UsageError."""
    if not is_key(key):
        raise UsageError(
            f"{key[:_LONGEST_KEY]!r} cannot be the key of an object: a key has at most {_LONGEST_KEY} "
            f"characters of a-z, 0-9, '.', '_', '-', in parts of at most {_LONGEST_PART} that are joined by "
            "'/' and do not begin with '.'"
        )
    return key


def check_prefix(prefix: str) -> str:
    """A prefix is a key with a '/' at its end, or empty: the whole storage."""
    if prefix:
        if not prefix.endswith("/"):
            raise UsageError(f"{prefix!r} cannot be listed: a prefix ends with '/', or is empty")
        check_key(prefix[:-1])
    return prefix


def is_key(key: str) -> bool:
    long = len(key) > _LONGEST_KEY or any(len(part) > _LONGEST_PART for part in key.split("/"))
    return not long and _KEY.fullmatch(key) is not None
