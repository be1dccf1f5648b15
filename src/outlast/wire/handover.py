"""What the agent hands to the replicas it starts, through their environment; read here and nowhere else."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from outlast.errors import ConfigError

_RUN, _RUN_ID, _REPLICA, _PROCESS, _AGENT, _PAGE, _GRACE = (
    "OUTLAST_RUN",
    "OUTLAST_RUN_ID",
    "OUTLAST_REPLICA",
    "OUTLAST_PROCESS",
    "OUTLAST_AGENT",
    "OUTLAST_PAGE",
    "OUTLAST_GRACE",
)


@dataclass(frozen=True, kw_only=True)
class Handover:
    """Who this process is. Nothing here is secret: the token stays in the run directory."""

    run: Path
    run_id: str = ""
    """Which directory the run's is, so that no other one is taken for it; empty if that is not known."""
    replica: int
    process: int
    agent: str
    page: Path
    grace_s: float = 10.0
    """How long it may take to leave, once it is asked to."""

    def environment(self) -> dict[str, str]:
        return {
            _RUN: str(self.run),
            _RUN_ID: self.run_id,
            _REPLICA: str(self.replica),
            _PROCESS: str(self.process),
            _AGENT: self.agent,
            _PAGE: str(self.page),
            _GRACE: str(self.grace_s),
        }


def handover(environment: Mapping[str, str] = os.environ) -> Handover | None:
    """The hand-over of the agent that started this process, or None if no agent did."""
    if _RUN not in environment:
        return None
    try:
        return Handover(
            run=Path(environment[_RUN]),
            run_id=environment[_RUN_ID],
            replica=int(environment[_REPLICA]),
            process=int(environment[_PROCESS]),
            agent=environment[_AGENT],
            page=Path(environment[_PAGE]),
            grace_s=float(environment[_GRACE]),
        )
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"this process has {_RUN} in its environment, but not the rest of what an agent hands over "
            f"({error}); start it with `outlast run`, or unset the OUTLAST_ variables to run it alone"
        ) from None
