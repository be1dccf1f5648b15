"""The run directory: what the launcher, the coordinator and the agents of one job share on a machine.

    run.json        what was asked for, and where the coordinator listens (written once, before anyone starts)
    token           the job's secret, readable by its owner alone
    store/          the coordinator's log
    agents/NAME/    how often that agent was started, and its replicas' progress pages
    logs/           what each replica printed

Everything a process needs to take part is here, so that starting one takes a path and a name, and secrets
never appear on a command line.
"""

import os
from pathlib import Path

import msgspec

from outlast.errors import ConfigError
from outlast.protocol.timing import Timing
from outlast.protocol.views import JobSpec
from outlast.wire.token import create_token, load_token

FORMAT = 1


class RunFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of run.json."""

    format: int = FORMAT
    spec: JobSpec
    address: str
    """Where the coordinator listens."""
    argv: tuple[str, ...]
    """The training script and its arguments, or -m, a module and its arguments."""
    working_directory: str
    preload: tuple[str, ...] = ()
    threads: int = 1
    """Intra-op threads of each replica; fixed, because results depend on it."""
    detect_within_s: float = 1.0
    launcher_pid: int = 0
    launcher_started: int = 0
    """When that process started, in the kernel's ticks: a number alone may become somebody else's."""

    def timing(self) -> Timing:
        return Timing(detect_within_s=self.detect_within_s)


class RunDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

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
    def name(self) -> str:
        return self.path.name

    def create(self, run: RunFile) -> bytes:
        """Make the directory with a fresh token, which is returned."""
        self.path.mkdir(mode=0o700, parents=True)
        token = create_token(self.token_file)
        self.write(run)
        return token

    def write(self, run: RunFile) -> None:
        encoded = msgspec.json.format(msgspec.json.encode(run), indent=2)
        fresh = self.path / f"run.json.{os.getpid()}"
        fresh.write_bytes(encoded + b"\n")
        fresh.replace(self.path / "run.json")

    def read(self) -> RunFile:
        path = self.path / "run.json"
        try:
            run = msgspec.json.decode(path.read_bytes(), type=RunFile)
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
        return load_token(self.token_file)
