"""What the objects of a vault are called. Whatever else lies under its URL is
nobody's business and left alone."""

import re

from outlast.protocol.trunk import Checkpoint

CLAIMS = "claims/"
MANIFESTS = "manifests/"
CHUNKS = "chunks/"

MAX_CLAIM = 10**8 - 1

MANIFEST_PATTERN = r"^manifests/([0-9]{8})-([0-9]{12})\.json$"
_MANIFEST = re.compile(MANIFEST_PATTERN)
_CLAIM = re.compile(r"^claims/([0-9]{8})\.json$")
_BEAT = re.compile(r"^claims/([0-9]{8})\.beat$")
_CHUNK = re.compile(r"^chunks/([0-9a-f]{2})/(\1[0-9a-f]{62})(\.z)?$")


def claim_name(number: int) -> str:
    return f"{CLAIMS}{number:08d}.json"


def beat_name(number: int) -> str:
    return f"{CLAIMS}{number:08d}.beat"


def manifest_name(claim: int, step: int) -> str:
    return f"{MANIFESTS}{claim:08d}-{step:012d}.json"


def chunk_name(digest: str, codec: str) -> str:
    return f"{CHUNKS}{digest[:2]}/{digest}{'.z' if codec else ''}"


def claim_number(name: str) -> int | None:
    found = _CLAIM.match(name)
    return int(found[1]) if found else None


def beat_number(name: str) -> int | None:
    found = _BEAT.match(name)
    return int(found[1]) if found else None


def checkpoint_of(name: str) -> Checkpoint | None:
    found = _MANIFEST.match(name)
    return Checkpoint(int(found[1]), int(found[2])) if found else None


def chunk_digest(name: str) -> str | None:
    found = _CHUNK.match(name)
    return found[2] if found else None
