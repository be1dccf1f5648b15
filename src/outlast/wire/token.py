"""The job token: 32 random bytes that every process of a job can read, and nobody else.

The token is a file in the job's directory, readable by its owner only. Whoever can read it belongs to the
job; the file system decides, so there is no password to type and none in an argument list, where `ps` would
show it. A token that others can read proves nothing, so loading one is refused rather than warned about.

The file appears whole or not at all: a process that looks while another creates it sees no half token, and
two processes that create it at once do not overwrite each other's.
"""

import contextlib
import os
import re
import secrets
import stat
from pathlib import Path

from outlast.errors import ConfigError

TOKEN_BYTES = 32
_HEX = re.compile(rb"[0-9a-f]{%d}\n?" % (2 * TOKEN_BYTES))


def create_token(path: Path, token: bytes | None = None) -> bytes:
    """Write a new token to `path`, or the one that is given, and return it. An existing file is never
    replaced: processes of a running job may have read it."""
    token = token or secrets.token_bytes(TOKEN_BYTES)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # The umask can only take permissions away, but it could take the owner's.
            os.fchmod(fd, 0o600)
            os.write(fd, token.hex().encode() + b"\n")
            os.fsync(fd)
        finally:
            os.close(fd)
        # A link fails where the name exists; a rename would replace it.
        os.link(draft, path)
    except FileExistsError:
        raise ConfigError(
            f"the job token {path} exists: another job uses this directory; choose another, or load the token"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"the job token {path} can not be written ({error.strerror}): choose another directory"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
    return token


def load_token(path: Path, *, directory_fd: int | None = None) -> bytes:
    """The token in `path`, or a ConfigError that says what is wrong with the file, never what is in it. With
    a descriptor of its directory, the file is looked for in that one, whatever the path leads to by now."""
    name = path if directory_fd is None else path.name
    try:
        # Without O_NONBLOCK, a named pipe in the file's place would block here for ever.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
        fd = os.open(name, flags, dir_fd=directory_fd)
    except FileNotFoundError:
        raise ConfigError(f"there is no job token {path}: is this the directory of a started job?") from None
    except OSError as error:
        raise ConfigError(f"the job token {path} can not be read ({error.strerror})") from error
    try:
        # The open file is checked, not the path, so that nobody can swap the file in between.
        _check_private(path, os.fstat(fd))
        content = os.read(fd, 4096)
    except OSError as error:
        raise ConfigError(f"the job token {path} can not be read ({error.strerror})") from error
    finally:
        os.close(fd)
    if not _HEX.fullmatch(content):
        raise ConfigError(
            f"the job token {path} is malformed: it must be {2 * TOKEN_BYTES} hexadecimal digits; "
            "remove it and start the job anew"
        )
    return bytes.fromhex(content.decode())


def _check_private(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"the job token {path} is not a regular file")
    if status.st_uid not in (os.geteuid(), 0):
        # Its owner knows it, and could pose as any process of the job.
        raise ConfigError(f"the job token {path} belongs to another user (id {status.st_uid})")
    if status.st_mode & 0o077:
        raise ConfigError(
            f"the job token {path} is accessible to others (mode {stat.S_IMODE(status.st_mode):04o}): "
            f"run `chmod 600 {path}`, or better, start the job anew with a new token"
        )
