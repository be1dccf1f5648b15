"""What to run, and how: all that a launcher is told."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from outlast.run.machine import Machine


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to run, and how."""

    argv: tuple[str, ...]
    replicas: int
    base: Path
    """The home of all runs."""
    name: str | None = None
    shards: int | None = None
    min_replicas: int = 1
    shadows: int = 0
    agents: int = 1
    """Agents on this machine; more than one stands for several machines in tests and drills."""
    address: str = "127.0.0.1:0"
    coordinators: int = 1
    """How many there are, of which one leads; more than one need a store that they share."""
    store: str = ""
    """An etcd cluster that keeps what is agreed on; the run's directory does if there is none."""
    detect_within_s: float = 1.0
    threads: int = 1
    preload: tuple[str, ...] = ()
    grace_s: float = 10.0
    working_directory: str = field(default_factory=os.getcwd)
    machine: Machine | None = None
    """This machine's part, if the job is on several."""
    ticket: Path | None = None
    """Where to write what the others need to join."""
