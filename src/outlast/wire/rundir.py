"""The run directory: what the launcher, the coordinator and the agents of one job share on a machine. A job
on several machines has one on each.

    run.json        what was asked for, and where the coordinator listens (written once, before anyone starts)
    token           the job's secret, readable by its owner alone
    store/          the coordinator's log
    agents/NAME/    how often that agent was started, and its replicas' progress pages
    logs/           what each replica printed, and the views that were agreed on
    events/         what happened, as each process tells it (see `observe`)
    ended.json      how the run ended (written by the launcher, last of all)

Everything a process needs to take part is here, so that starting one takes a path and a name, and secrets
never appear on a command line.

It says which program is run as the owner, so what is read from it is proven to be the owner's; see
`private`. The processes of a job are told by their parents which directory it is, and not only what it is
called: should another one be found under that name, it is not read.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from outlast.errors import ConfigError
from outlast.protocol.timing import Timing
from outlast.protocol.views import JobSpec
from outlast.wire import private
from outlast.wire.token import create_token, load_token

FORMAT = 1
OWN_PARTS = 3
"""The home of all runs, the runs in it, and the run: of its path, these are ours."""


class Reach(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where processes of this machine listen, and where others reach them."""

    bind: str = "127.0.0.1"
    advertise: str = ""
    """What others are told; the same as `bind` if nothing else is said."""
    ports: tuple[int, int] = (0, 0)
    """From which range replicas take theirs; any."""

    @property
    def known_as(self) -> str:
        return self.advertise or self.bind


class RunFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of run.json."""

    format: int = FORMAT
    spec: JobSpec
    addresses: tuple[str, ...]
    """Where the coordinators listen; of several, one leads."""
    store: str = ""
    """Where what is agreed on is kept: `etcd://…`, with a prefix that is this run's alone; in the run's
    directory if there is none."""
    argv: tuple[str, ...]
    """The training script and its arguments, or -m, a module and its arguments."""
    working_directory: str
    preload: tuple[str, ...] = ()
    threads: int = 1
    """Intra-op threads of each replica; fixed, because results depend on it."""
    detect_within_s: float = 1.0
    reach: Reach = Reach()
    insecure: bool = False
    """Whether messages may leave this machine in the clear."""
    launcher_pid: int = 0
    launcher_started: int = 0
    """When that process started, in the kernel's ticks: a number alone may become somebody else's."""

    def timing(self) -> Timing:
        return Timing(detect_within_s=self.detect_within_s)


class RunDirectory:
    def __init__(self, path: Path, identity: str = "") -> None:
        self.path = path.absolute()
        self.identity = identity
        """Which directory it is, as `private.identity` has it; empty if all that is known is the path."""

    @property
    def store(self) -> Path:
        return self.path / "store"

    @property
    def token_file(self) -> Path:
        return self.path / "token"

    def agent(self, name: str) -> Path:
        return self.path / "agents" / name

    def log(self, replica: int) -> Path:
        return self.path / "logs" / f"replica-{replica}.log"

    @property
    def views_log(self) -> Path:
        return self.path / "logs" / "views.log"

    @property
    def name(self) -> str:
        return self.path.name

    def create(self, run: RunFile, token: bytes | None = None) -> bytes:
        """Make the directory with a fresh token, or the one that the job has; it is returned."""
        private.make_directory(self.path, own=OWN_PARTS)
        with self.held() as fd:
            token = create_token(self.token_file, token)
            self._write(run, fd)
        return token

    def renew(self, run: RunFile) -> None:
        """Of a machine that takes part in its job once more: say how, this time."""
        with self.held() as fd:
            self._write(run, fd)

    def _write(self, run: RunFile, fd: int) -> None:
        encoded = msgspec.json.format(msgspec.json.encode(run), indent=2)
        private.write_file(self.path / "run.json", encoded + b"\n", directory_fd=fd)

    @contextmanager
    def held(self) -> Iterator[int]:
        """A descriptor of the directory. As long as somebody has one, no other directory can ever have its
        identity, which is known from then on."""
        if self.identity:
            fd = private.open_same_directory(self.path, self.identity)
        else:
            fd = private.open_directory(self.path)
        try:
            self.identity = private.identity(fd)
            yield fd
        finally:
            os.close(fd)

    def read(self) -> RunFile:
        path = self.path / "run.json"
        try:
            with self.held() as fd:
                run = msgspec.json.decode(private.read_file(fd, path), type=RunFile)
        except FileNotFoundError:
            raise ConfigError(f"{self.path} is not a run directory: it has no run.json") from None
        except msgspec.DecodeError as error:
            raise ConfigError(
                f"{path} cannot be read ({error}); it was written by another version of Outlast, or edited"
            ) from None
        if run.format != FORMAT:
            raise ConfigError(f"{path} has format {run.format}, and this version of Outlast reads {FORMAT}")
        return run

    def token(self) -> bytes:
        with self.held() as fd:
            return load_token(self.token_file, directory_fd=fd)
