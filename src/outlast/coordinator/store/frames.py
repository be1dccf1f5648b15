"""The bytes of the log: a header, then one frame per record. No files here, only bytes.

    file   = header frame frame …
    header = magic (8)  version (4)  salt (16)  checksum of these (4)
    frame  = marker (4)  revision (8)  length (4)  checksum (4)  payload (length)

The first frame holds the whole state at some revision, and every later one the changes of the next revision.
A frame's checksum covers its revision, its length and its payload, and begins with the file's random salt, so
that a frame of another log, perhaps stored here as somebody's value, is never taken for one of this log.

What a crash can do to such a file is known exactly: a record is synced before the next one is written, and
the file with its first frame is synced before it gets its name. So a crash leaves a **torn tail**, a last
frame that is incomplete or wrong and has nothing valid behind it. That record was never acknowledged, and
dropping it is right. Anything else (a valid frame *behind* a wrong one, a gap in the revisions, a bad first
frame or header) is **damage**: acknowledged records are gone, and only a human can decide what that means.
"""

import struct
import zlib
from pathlib import Path

from msgspec import Struct

from outlast.errors import StoreDamaged

MAGIC = b"\x89OUTLAST"
VERSION = 1
MARKER = b"\xf5REC"
SALT_BYTES = 16

_HEADER = struct.Struct("<8sI16sI")
_FRAME = struct.Struct("<4sQII")
_COVERED = struct.Struct("<QI")


class Frame(Struct, frozen=True):
    """One record as it lies in the file, from byte `start` up to byte `end`."""

    revision: int
    payload: bytes
    start: int
    end: int


def encode_header(salt: bytes) -> bytes:
    covered = _HEADER.pack(MAGIC, VERSION, salt, 0)[:-4]
    return covered + zlib.crc32(covered).to_bytes(4, "little")


def encode_frame(salt: bytes, revision: int, payload: bytes) -> bytes:
    checksum = _checksum(salt, revision, payload)
    return _FRAME.pack(MARKER, revision, len(payload), checksum) + payload


def decode_log(data: bytes, path: Path) -> tuple[bytes, list[Frame]]:
    """The salt and all frames of a log. What lies behind the end of the last frame is a torn tail.

    Raises `StoreDamaged`, naming the path and the offset, for what no crash explains.
    """
    salt = _decode_header(data, path)
    frames: list[Frame] = []
    offset = _HEADER.size
    while offset < len(data) or not frames:
        frame = _decode_frame(data, offset, salt)
        if frame is None:
            if not frames:
                raise damaged(path, offset, "the state that the log begins with is incomplete or wrong")
            later = _next_frame(data, offset + 1, salt, frames[-1].revision)
            if later is not None:
                raise damaged(
                    path,
                    offset,
                    f"the record of revision {frames[-1].revision + 1} is wrong, "
                    f"yet a good one (revision {later.revision}) follows at byte {later.start}",
                )
            break
        if frames and frame.revision != frames[-1].revision + 1:
            raise damaged(path, offset, f"revision {frame.revision} follows revision {frames[-1].revision}")
        frames.append(frame)
        offset = frame.end
    return salt, frames


def damaged(path: Path, offset: int, what: str) -> StoreDamaged:
    return StoreDamaged(
        f"{path} is damaged at byte {offset}: {what}. No crash does this; the disk or another program did. "
        "The file was left untouched. Restore it from a backup, or move it away to start afresh without its "
        "state."
    )


def _decode_header(data: bytes, path: Path) -> bytes:
    if data[: len(MAGIC)] != MAGIC:
        raise damaged(path, 0, "it does not begin as a log of Outlast does")
    if len(data) < _HEADER.size:
        raise damaged(path, 0, f"its header has {len(data)} of {_HEADER.size} bytes")
    _, version, salt, checksum = _HEADER.unpack_from(data)
    if version > VERSION:
        # The version comes before the checksum, because a newer format may well have moved the checksum.
        raise StoreDamaged(
            f"{path} says at byte {len(MAGIC)} that it has format {version}, but this Outlast only knows "
            f"formats up to {VERSION}. The file was left untouched. Use a newer Outlast, or move the file "
            "away to start afresh without its state."
        )
    if version < 1 or checksum != zlib.crc32(data[: _HEADER.size - 4]):
        raise damaged(path, len(MAGIC), "the header's checksum is wrong")
    return bytes(salt)


def _decode_frame(data: bytes, start: int, salt: bytes) -> Frame | None:
    """The frame that begins at this byte, or None if there is no complete and correct one."""
    if len(data) - start < _FRAME.size:
        return None
    marker, revision, length, checksum = _FRAME.unpack_from(data, start)
    end = start + _FRAME.size + length
    if marker != MARKER or end > len(data):
        return None
    payload = data[start + _FRAME.size : end]
    if checksum != _checksum(salt, revision, payload):
        return None
    return Frame(revision, payload, start, end)


def _next_frame(data: bytes, offset: int, salt: bytes, after: int) -> Frame | None:
    """The first correct frame at or behind the offset that belongs to a revision greater than `after`."""
    while (offset := data.find(MARKER, offset)) >= 0:
        frame = _decode_frame(data, offset, salt)
        if frame is not None and frame.revision > after:
            return frame
        offset += 1
    return None


def _checksum(salt: bytes, revision: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(_COVERED.pack(revision, len(payload)), zlib.crc32(salt)))
