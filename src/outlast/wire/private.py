"""Directories that nobody else can put another one in place of, and files that are proven to be ours.

A run directory says which program to start, and it is started as the owner of the job. Whoever may write to a
directory may move aside what is in it and put something else there, whoever that belongs to. So it is not
enough that the run directory itself is private: everything on the way to it counts. The rules are

- root and we ourselves are trusted, and every directory on the way belongs to one of the two;
- nobody else may write to it, unless it is sticky (as /tmp is): there, what is ours stays where it is;
- above what is our own, a group that has nobody in it but us may write, too: many systems give every user
  such a group and let it write to all that the user makes.

The way is walked by descriptors, each opened from the one before, and what was opened is checked: nobody can
change anything in between. Symbolic links are followed one by one, by the same rules. What we make is for us
alone, whatever the umask says.
"""

import contextlib
import grp
import os
import pwd
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

from outlast.errors import ConfigError

LINKS_MOST = 40
READ_MOST_BYTES = 16 << 20

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def open_directory(path: Path, *, own: int = 1) -> int:
    """A descriptor of a directory that nobody else could have put there. The last `own` parts of the path
    are ours, and no group may write to them."""
    return _Walk(own, make=False).to(path)


def make_directory(path: Path, *, own: int = 1) -> None:
    """Make a directory that is not there yet, and those above it that are missing."""
    os.close(_Walk(own, make=True).to(path))


def make_below(directory: Path) -> None:
    """Make a directory, and those above it that are missing, where all above these is known to be safe."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        path.chmod(0o700)


def identity(fd: int) -> str:
    """What tells this directory from all others, as long as somebody has it open."""
    status = os.fstat(fd)
    return f"{status.st_dev}:{status.st_ino}"


def open_same_directory(path: Path, known: str) -> int:
    """A descriptor of this very directory, however safe the way to it is."""
    try:
        fd = os.open(path, _DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        raise _replaced(path) from None
    with _closed_on_error(fd):
        if identity(fd) != known:
            raise _replaced(path)
        complaint = _belongs_elsewhere(path, os.fstat(fd)) or _loose([path], os.fstat(fd))
        if complaint is not None:
            raise complaint
    return fd


def read_file(directory_fd: int, path: Path) -> bytes:
    """The file of that name in an open directory; `path` serves messages."""
    # Without O_NONBLOCK, a named pipe in the file's place would block here for ever.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(path.name, flags, dir_fd=directory_fd), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{path} is not a regular file")
        complaint = _belongs_elsewhere(path, status) or _loose([path], status)
        if complaint is not None:
            raise complaint
        return file.read(READ_MOST_BYTES)


def write_file(
    path: Path, content: bytes | memoryview, *, directory_fd: int | None = None, durable: bool = False
) -> None:
    """Write a file that is ours alone and takes its place whole: whoever has an older one open keeps that. If
    it cannot be written, nothing is left of it."""
    target = path if directory_fd is None else Path(path.name)
    fresh = target.with_name(f"{path.name}.{os.getpid()}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(fresh, flags, 0o600, dir_fd=directory_fd)
    try:
        with open(fd, "wb") as file:
            # The umask may have taken permissions from us, and an older file may give some to others.
            os.fchmod(file.fileno(), 0o600)
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(fresh, target, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(fresh, dir_fd=directory_fd)
        raise


class _Walk:
    """From the root to a directory, one descriptor after the other."""

    def __init__(self, own: int, *, make: bool) -> None:
        self._own = own
        self._make = make
        self._writable: list[Path] = []

    def to(self, path: Path) -> int:
        path = path.absolute()
        rest = list(reversed(path.parts[1:]))
        here, fd = Path("/"), os.open("/", _DIRECTORY)
        links = 0
        with contextlib.ExitStack() as stack:
            stack.callback(lambda: os.close(fd))
            self._check(here, os.fstat(fd), left=len(rest))
            while rest:
                name = rest.pop()
                target = self._link(here / name, name, fd)
                if target is not None:
                    links += 1
                    if links > LINKS_MOST:
                        raise ConfigError(f"{path}: there are too many symbolic links on the way")
                    if target.is_absolute():
                        os.close(fd)
                        here, fd = Path("/"), os.open("/", _DIRECTORY)
                    rest += reversed(target.parts[1 if target.is_absolute() else 0 :])
                    continue
                below = self._enter(here / name, name, fd, last=not rest)
                os.close(fd)
                here, fd = (here.parent if name == ".." else here / name), below
                self._check(here, os.fstat(fd), left=len(rest))
            self._refuse()
            stack.pop_all()
        return fd

    def _link(self, shown: Path, name: str, fd: int) -> Path | None:
        """Where it leads, if this is a symbolic link."""
        try:
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if not stat.S_ISLNK(status.st_mode):
            return None
        complaint = _belongs_elsewhere(shown, status)
        if complaint is not None:
            raise complaint
        return Path(os.readlink(name, dir_fd=fd))

    def _enter(self, shown: Path, name: str, fd: int, *, last: bool) -> int:
        if self._make and (last or not _exists(name, fd)):
            # Nothing is made where somebody could take it away again.
            self._refuse()
            try:
                os.mkdir(name, 0o700, dir_fd=fd)
                # The umask may have taken permissions from us.
                os.chmod(name, 0o700, dir_fd=fd)
            except FileExistsError:
                if last:
                    raise
        try:
            return os.open(name, _DIRECTORY, dir_fd=fd)
        except OSError as error:
            error.filename = str(shown)
            raise

    def _check(self, shown: Path, status: os.stat_result, *, left: int) -> None:
        """`left` is how many parts of the path are below this one."""
        complaint = _belongs_elsewhere(shown, status)
        if complaint is not None:
            raise complaint
        sticky = status.st_mode & stat.S_ISVTX and left > 0
        above = left >= self._own
        if sticky or (above and not status.st_mode & stat.S_IWOTH and _nobody_else_in(status.st_gid)):
            return
        if status.st_mode & _OTHERS_WRITE:
            self._writable.append(shown)

    def _refuse(self) -> None:
        if self._writable:
            raise _others_may_write(self._writable)


def _exists(name: str, fd: int) -> bool:
    try:
        os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _loose(paths: list[Path], status: os.stat_result) -> ConfigError | None:
    return _others_may_write(paths) if status.st_mode & _OTHERS_WRITE else None


def _others_may_write(paths: list[Path]) -> ConfigError:
    names = " ".join(shlex.quote(str(path)) for path in paths)
    return ConfigError(
        f"others may write to {names}, and could put a program of theirs in place of yours: "
        f"run `chmod go-w {names}`, or set OUTLAST_HOME to a directory that is yours alone"
    )


def _belongs_elsewhere(path: Path, status: os.stat_result) -> ConfigError | None:
    if status.st_uid in (os.geteuid(), 0) or _is_unmapped(status.st_uid):
        return None
    return ConfigError(
        f"{path} belongs to another user (id {status.st_uid}), who could put a program of theirs in place of "
        "yours: set OUTLAST_HOME to a directory that is yours alone"
    )


def _replaced(path: Path) -> ConfigError:
    return ConfigError(
        f"{path} is not the directory that this run was started with: somebody has moved it away or put "
        "another one in its place. Start the run anew, and keep its directory where it is"
    )


def _nobody_else_in(gid: int) -> bool:
    """Whether this is the group of our own that many systems give to a user: with our name, and us in it."""
    try:
        me, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return me.pw_gid == gid and group.gr_name == me.pw_name and set(group.gr_mem) <= {me.pw_name}


def _is_unmapped(uid: int) -> bool:
    """Whether this number stands for all users that do not exist in this container: what the host's root
    owns, such as the root directory, looks like that in one that was made by an ordinary user."""
    try:
        overflow = int(Path("/proc/sys/kernel/overflowuid").read_text())
        ranges = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    except (OSError, ValueError):
        return False
    return uid == overflow and not any(int(low) <= uid < int(low) + int(size) for low, _, size in ranges)


@contextlib.contextmanager
def _closed_on_error(fd: int) -> Iterator[None]:
    try:
        yield
    except BaseException:
        os.close(fd)
        raise
