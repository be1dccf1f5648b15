"""What the objects of a vault are called. Whatever else lies under its URL is
nobody's business and left alone."""

import re
from typing import NamedTuple

from outlast.errors import ConfigError
from outlast.protocol.trunk import Checkpoint

CLAIMS = "claims/"
MANIFESTS = "manifests/"
CHUNKS = "chunks/"
NAMES = "names/"

MAX_CLAIM = 10**8 - 1

MANIFEST_PATTERN = r"^manifests/([0-9]{8})-([0-9]{12})\.json$"
_MANIFEST = re.compile(MANIFEST_PATTERN)
_CLAIM = re.compile(r"^claims/([0-9]{8})\.json$")
_BEAT = re.compile(r"^claims/([0-9]{8})\.beat$")
ERA_PATTERN = r"^([0-9]{1,8}-[0-9]{1,16}-[0-9]{1,9})?$"
_CHUNK = re.compile(r"^chunks/([0-9a-f]{2})/(\1[0-9a-f]{62})(?:-([0-9]{1,8}-[0-9]{1,16}-[0-9]{1,9}))?(\.z)?$")

_POINTER = re.compile(r"^names/([a-z0-9._-]+)/([0-9]{8})-([0-9]{12})\.json$")
NAME_CHARS = 64
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
ENDED = "-ended"
"""Points to the state with which the script has ended its run before the total was reached. A script's own
names cannot begin like that."""


class Era(NamedTuple):
    """Under which claim, in which view of its run, and for which committer a chunk was written.

    It is part of a chunk's name, so that nothing is ever written again under a name that somebody who has
    been evicted may be about to delete: see `pruning`."""

    claim: int
    view: int
    committer: int

    def __str__(self) -> str:
        return f"{self.claim}-{self.view}-{self.committer}"

    def is_over_for(self, other: "Era") -> bool:
        """Whether nothing is written in this era any more, as far as one knows who works in the other."""
        return self == other or self[:2] < other[:2]


def claim_name(number: int) -> str:
    return f"{CLAIMS}{number:08d}.json"


def beat_name(number: int) -> str:
    return f"{CLAIMS}{number:08d}.beat"


def manifest_name(claim: int, step: int) -> str:
    return f"{MANIFESTS}{claim:08d}-{step:012d}.json"


def chunk_name(digest: str, codec: str, era: str = "") -> str:
    """The hash says what it holds, the era who may still rely on it."""
    return f"{CHUNKS}{digest[:2]}/{digest}{f'-{era}' if era else ''}{'.z' if codec else ''}"


def claim_number(name: str) -> int | None:
    found = _CLAIM.match(name)
    return int(found[1]) if found else None


def beat_number(name: str) -> int | None:
    found = _BEAT.match(name)
    return int(found[1]) if found else None


def checkpoint_of(name: str) -> Checkpoint | None:
    found = _MANIFEST.match(name)
    return Checkpoint(int(found[1]), int(found[2])) if found else None


def chunk_era(name: str) -> Era | None:
    """None for a chunk that was written outside of a run, and by any name that is none of a chunk."""
    found = _CHUNK.match(name)
    return Era(*map(int, found[3].split("-"))) if found and found[3] else None


def chunk_digest(name: str) -> str | None:
    found = _CHUNK.match(name)
    return found[2] if found else None


def check_name(name: object) -> str:
    """A name for a checkpoint, or a ConfigError."""
    if not isinstance(name, str) or len(name) > NAME_CHARS or not _NAME.fullmatch(name) or name.isdigit():
        raise ConfigError(
            f"{name!r} cannot be the name of a checkpoint: take 1 to {NAME_CHARS} letters, digits, '-', '_' "
            "and '.', beginning with a letter or a digit, and not digits alone, which would be a step."
        )
    return name


def pointer_name(name: str, checkpoint: Checkpoint) -> str:
    """Keys have no capitals, and names have: `_a` stands for `A`, and `__` for `_`."""
    escaped = re.sub(r"[A-Z_]", lambda found: f"_{found[0].lower()}", name)
    return f"{NAMES}{escaped}/{checkpoint.claim:08d}-{checkpoint.step:012d}.json"


def pointer_of(key: str) -> tuple[str, Checkpoint] | None:
    """Which name it gives to which checkpoint."""
    found = _POINTER.match(key)
    if not found:
        return None
    name = re.sub(r"_(.)", lambda escaped: escaped[1].upper(), found[1])
    return name, Checkpoint(int(found[2]), int(found[3]))
