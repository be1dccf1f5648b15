"""What a member keeps on disk: etcd's own data, its log, and a page of ours that says whose it is.

A member is its data. Data of another cluster, or of another member, under a name that somebody typed, would
be started as if it were right; the page is there to say that it is not. While a member runs, its folder is
locked, so that a second one is refused in words and not by a file lock that somebody waits for.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Self, final

import msgspec

from outlast.coordinator.store.disk import explain
from outlast.coordinator.store.lock import DirectoryLock
from outlast.errors import ConfigError, StoreError, StoreLocked
from outlast.etcd.places import Place, parse_place, spelled
from outlast.wire import private

FORMAT = 1
PAGE = "member.json"
LOG_MOST_BYTES = 16 << 20
WORDS_MOST_BYTES = 64 << 10


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of member.json."""

    format: int = FORMAT
    name: str
    at: str
    members: str = ""
    """As the cluster was begun with; empty if it was begun with this one alone, or if this one joined it."""
    clients: tuple[str, ...] = ()
    """Where clients were last known to reach the members, this one included."""
    peers: dict[str, str] = {}
    """Where members were last known to reach each other."""
    cluster: str = ""
    """The cluster's own number, once it is known."""

    @property
    def place(self) -> Place:
        return parse_place(self.at)


@final
class Folder:
    """One member's folder, locked while it is open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path / "data"
        self.log = path / "etcd.log"
        self._lock: DirectoryLock | None = None

    def __enter__(self) -> Self:
        try:
            with contextlib.suppress(FileExistsError):
                private.make_directory(self.path)
            os.close(private.open_directory(self.path))
            self.path.chmod(0o700)
            self.data.mkdir(mode=0o700, exist_ok=True)
            self.data.chmod(0o700)
        except OSError as error:
            raise explain(error, self.path) from error
        try:
            self._lock = DirectoryLock(self.path)
        except StoreLocked:
            raise StoreLocked(
                f"a member runs in {self.path} already: there is nothing to do, or, if another one is meant, "
                "give it another --name or --data"
            ) from None
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def has_data(self) -> bool:
        """Whether a member has lived here. etcd puts its log in place in one go."""
        return (self.data / "member" / "wal").is_dir()

    def page(self) -> Page | None:
        path = self.path / PAGE
        try:
            page = msgspec.json.decode(path.read_bytes(), type=Page)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise StoreError(
                f"{path} cannot be read ({error}): the folder needs it to know whose it is"
            ) from None
        if page.format != FORMAT:
            raise ConfigError(f"{path} has format {page.format}, this version of Outlast reads {FORMAT}")
        return page

    def write(self, page: Page) -> None:
        content = msgspec.json.format(msgspec.json.encode(page), indent=2) + b"\n"
        try:
            private.write_file(self.path / PAGE, content, durable=True)
        except OSError as error:
            raise explain(error, self.path / PAGE) from error

    def open_log(self) -> int:
        """To append to. Whatever was there before is behind us."""
        self.trim_log()
        return os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def trim_log(self) -> None:
        """Keep it from filling the disk, while the member writes on."""
        with contextlib.suppress(OSError):
            if self.log.stat().st_size > LOG_MOST_BYTES:
                os.replace(self._copy(), self.path / "etcd.log.old")
                os.truncate(self.log, 0)

    def log_size(self) -> int:
        try:
            return self.log.stat().st_size
        except OSError:
            return 0

    def words_since(self, offset: int) -> str:
        """What the member has written since then, or the end of it."""
        try:
            with self.log.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(offset if offset <= size else 0, size - WORDS_MOST_BYTES))
                return file.read().decode(errors="replace")
        except OSError:
            return ""

    def _copy(self) -> Path:
        copy = self.path / "etcd.log.copy"
        private.write_file(copy, self.log.read_bytes())
        return copy


def belongs(
    page: Page | None, *, name: str, place: Place | None, members: Mapping[str, Place], folder: Path
) -> None:
    """Raises `ConfigError` if data is there that is not of the member that is to be started. A list of
    members may be that of the cluster's beginning, or that of now; one that joined knows no beginning."""
    if page is None:
        raise ConfigError(
            f"there is data of an etcd in {folder}, and nothing that says whose: give another --data, or "
            "remove it if nobody needs it"
        )
    other = f"{folder} holds the data of member {page.name} at {page.at}"
    if page.name != name:
        raise ConfigError(f"{other}, not of {name}: give another --data, or --name {page.name}")
    if place is not None and place != page.place:
        raise ConfigError(
            f"{other}, and the others look for it there: give the same --at as before. To move it to "
            f"{place}, remove its data and let it join from there: --join ENDPOINTS --replace"
        )
    now = {other: place.peer_url for other, place in members.items()}
    if members and page.members and spelled(members) != page.members and now != page.peers:
        raise ConfigError(
            f"{other} in the cluster {page.members}, and --members says {spelled(members)}: leave --members "
            "out to go on with that data, or give another --data to begin another cluster"
        )
