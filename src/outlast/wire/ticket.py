"""The ticket: all that a machine must know to take part in a job, in one file.

It holds the job's token, so whoever can read it belongs to the job. It is written for its owner alone, and a
ticket that others can read is refused. It travels as a file, never on a command line or in an environment.
"""

import hashlib
import os
import stat
from importlib.metadata import version
from pathlib import Path

import msgspec

from outlast.errors import ConfigError
from outlast.protocol.views import JobSpec
from outlast.wire import private
from outlast.wire.token import TOKEN_BYTES

FORMAT = 1
MAX_BYTES = 1 << 20


class Ticket(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: int = FORMAT
    outlast: str
    """The version of Outlast that made it."""
    spec: JobSpec
    token: str
    store: str
    """The etcd cluster that keeps what is agreed on, with a prefix that is this job's alone."""
    coordinators: tuple[str, ...]
    """Where coordinators are reached. The machine that has one of these addresses runs that coordinator."""
    insecure: bool = False
    """Whether whoever made it allows messages to cross a network in the clear."""
    argv: tuple[str, ...]
    digest: str
    """Of the script, or of the file of its module; empty if there is none."""
    working_directory: str
    preload: tuple[str, ...] = ()
    threads: int = 1
    detect_within_s: float = 1.0

    @property
    def secret(self) -> bytes:
        return bytes.fromhex(self.token)

    def write(self, path: Path) -> None:
        try:
            private.write_file(path, msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")
        except OSError as error:
            raise ConfigError(f"the ticket {path} cannot be written ({error.strerror})") from None


def read_ticket(path: Path) -> Ticket:
    content = _read(path)
    try:
        made = msgspec.json.decode(content, type=_Head)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is no ticket of Outlast ({error})") from None
    here = version("outlast")
    if (made.format, made.outlast) != (FORMAT, here):
        raise ConfigError(
            f"the ticket {path} was made by Outlast {made.outlast}, and this machine has {here}: install the "
            "same version on all machines of a job"
        )
    try:
        ticket = msgspec.json.decode(content, type=Ticket)
        ticket.spec.validate()
        if len(ticket.secret) != TOKEN_BYTES or not ticket.coordinators:
            raise ValueError("there is no token of the right length, or no coordinator")
    except ValueError as error:
        raise ConfigError(f"the ticket {path} is damaged ({error}): copy it anew") from None
    return ticket


def digest_of(program: Path | None) -> str:
    return hashlib.sha256(program.read_bytes()).hexdigest() if program is not None else ""


class _Head(msgspec.Struct):
    format: int
    outlast: str


def _read(path: Path) -> bytes:
    try:
        # Without O_NONBLOCK, a named pipe in the file's place would block here for ever.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigError(f"the ticket {path} cannot be read ({error.strerror})") from None
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise ConfigError(f"the ticket {path} is not a regular file")
    with open(fd, "rb") as file:
        if status.st_uid not in (os.geteuid(), 0):
            raise ConfigError(f"the ticket {path} belongs to another user (id {status.st_uid})")
        if status.st_mode & 0o077:
            raise ConfigError(
                f"the ticket {path} is accessible to others (mode {stat.S_IMODE(status.st_mode):04o}), and "
                f"with it the job: run `chmod 600 {path}`, and start the job anew if others use this machine"
            )
        return file.read(MAX_BYTES)
