"""How a member is started: etcd's options, chosen for what Outlast keeps in it. Pure.

What is kept is small and matters: a document of at most a megabyte per job, written whole at every change.
So the history that etcd keeps of it is short, on disk and in memory, and the time until a lost leader is
replaced is shorter than etcd's own choice, which is made for clusters over several cities.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from outlast.coordinator.store.gateway import Endpoint
from outlast.errors import ConfigError
from outlast.etcd.places import Place

ELECTION_MS = 500
ELECTION_LEAST_MS, ELECTION_MOST_MS = 50, 50_000
BEATS_PER_ELECTION = 10
QUOTA_BYTES = 4 << 30
"""Past it etcd takes no more writes. Documents of a megabyte that change every second for as long as history
is kept need an eighth of it."""
KEEP_HISTORY = "5m"
SNAPSHOT_EVERY = 5000
"""etcd keeps up to twice as many of its newest writes in memory."""

NEW, EXISTING = "new", "existing"


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One member, as it is to be started."""

    name: str
    place: Place
    ip: str
    """Where it listens."""
    data: Path
    election_ms: int = ELECTION_MS
    cluster: Mapping[str, str]
    """The peers' URLs by their names, this one included. It counts only where there is no data yet, and so
    do the other two."""
    state: str = NEW
    token: str = ""

    def command(self, program: Path) -> list[str]:
        options = {
            "name": self.name,
            "data-dir": str(self.data),
            "listen-client-urls": f"http://{Endpoint(self.ip, self.place.client_port)}",
            "advertise-client-urls": f"http://{self.place.client}",
            "listen-peer-urls": f"http://{Endpoint(self.ip, self.place.peer_port)}",
            "initial-advertise-peer-urls": self.place.peer_url,
            "initial-cluster": ",".join(f"{name}={url}" for name, url in self.cluster.items()),
            "initial-cluster-state": self.state,
            "initial-cluster-token": self.token,
            "heartbeat-interval": str(max(1, self.election_ms // BEATS_PER_ELECTION)),
            "election-timeout": str(self.election_ms),
            "auto-compaction-mode": "periodic",
            "auto-compaction-retention": KEEP_HISTORY,
            "quota-backend-bytes": str(QUOTA_BYTES),
            "snapshot-count": str(SNAPSHOT_EVERY),
            "logger": "zap",
            "log-outputs": "stderr",
            "log-level": "warn",
        }
        # Without a vote before the vote, a member that returns deposes a healthy leader.
        return [
            str(program),
            "--pre-vote",
            *(f"--{name}={value}" for name, value in options.items() if value),
        ]


def check_election(election_ms: int) -> None:
    if not ELECTION_LEAST_MS <= election_ms <= ELECTION_MOST_MS:
        raise ConfigError(
            f"--election-ms is {election_ms}; use {ELECTION_LEAST_MS} to {ELECTION_MOST_MS}: ten times what "
            "a word takes from one member to another and back, or more, and the same for all members"
        )


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Without what would set options of etcd behind our back."""
    kept = {"ETCD_UNSUPPORTED_ARCH"}
    return {
        name: value for name, value in environment.items() if not name.startswith("ETCD_") or name in kept
    }
