"""A real etcd: one member or several, on loopback or on machines of a network, tuned so that a lost leader is
replaced in a moment.

`scripts/etcd-binary` gets the program.
"""

import contextlib
import http.client
import json
import os
import shutil
import signal
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from servers.children import Child, free_ports
from servers.machines import Machine

PROGRAM = Path(os.environ.get("OUTLAST_ETCD", Path(__file__).parents[2] / ".venv" / "etcd" / "etcd"))


def missing() -> str | None:
    """Why there is no such server on this machine; None if there is."""
    return None if PROGRAM.exists() else "no etcd: run scripts/etcd-binary"


class Etcd:
    """`wait` returns when all members serve; then each may be killed, stopped and started again at will."""

    def __init__(
        self, folder: Path, members: int = 1, *, machines: Sequence[Machine] = (), **options: str
    ) -> None:
        """Where there are `machines`, one for each member, that is where they run. `options` are etcd's own,
        beside those that it needs here."""
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._options = options
        self.machines = machines
        if machines:
            self.hosts = [machine.address for machine in machines]
            self.ports, self._peers = [2379] * members, [2380] * members
        else:
            self.hosts = ["127.0.0.1"] * members
            ports = free_ports(2 * members)
            self.ports, self._peers = ports[:members], ports[members:]
        self._children: list[Child | None] = [None] * members
        for member in range(members):
            self.start(member)

    def address(self, prefix: str, *, v6: bool = False) -> str:
        """`v6` on machines only."""
        hosts = [f"[{machine.address6}]" for machine in self.machines] if v6 else self.hosts
        members = zip(hosts, self.ports, strict=True)
        return f"etcd://{','.join(f'{host}:{port}' for host, port in members)}/{prefix}"

    def start(self, member: int) -> None:
        assert self._children[member] is None
        client = f"http://{self.hosts[member]}:{self.ports[member]}"
        if self.machines:
            client += f",http://[{self.machines[member].address6}]:{self.ports[member]}"
        peers = [f"http://{host}:{port}" for host, port in zip(self.hosts, self._peers, strict=True)]
        peer = peers[member]
        options = {
            "name": f"m{member}",
            "data-dir": str(self._folder / f"m{member}"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": ",".join(f"m{at}={url}" for at, url in enumerate(peers)),
            "heartbeat-interval": "20",
            "election-timeout": "200",
            "logger": "zap",
            "log-level": "error",
            **self._options,
        }
        command = [str(PROGRAM), "--pre-vote", *(f"--{name}={value}" for name, value in options.items())]
        log = self._folder / f"m{member}.log"
        start = self.machines[member].start if self.machines else Child
        self._children[member] = start(command, log)

    def wait(self) -> None:
        for member, child in enumerate(self._children):
            if child is not None:
                child.wait_until(lambda member=member: self.is_healthy(member))

    def is_healthy(self, member: int) -> bool:
        """Whether it can have something agreed on."""
        return self._asked(member, "GET", "/health").get("health") == "true"

    def leader(self, among: Sequence[int] = ()) -> int:
        """Which member leads, or which of these, as one that is cut off may believe it still does; -1 if none
        does."""
        for member, child in enumerate(self._children):
            if child is not None and member in (among or range(len(self._children))):
                status = self._asked(member, "POST", "/v3/maintenance/status")
                if status and status.get("leader") == status["header"]["member_id"]:
                    return member
        return -1

    def forget(self) -> None:
        """End all leases and delete all keys."""
        for one in self._asked(0, "POST", "/v3/lease/leases").get("leases", ()):
            self._asked(0, "POST", "/v3/lease/revoke", {"ID": one["ID"]})
        self._asked(0, "POST", "/v3/kv/deleterange", {"key": "AA==", "range_end": "AA=="})

    def values(self, end: str) -> list[bytes]:
        """Of all keys that end like this, as the first member knows them that answers."""
        everything = {"key": "AA==", "range_end": "AA=="}
        for member in range(len(self.ports)):
            answer = self._asked(member, "POST", "/v3/kv/range", everything)
            if "kvs" in answer:
                kept = [one for one in answer["kvs"] if b64decode(one["key"]).decode().endswith(end)]
                return [b64decode(one.get("value", "")) for one in kept]
        return []

    def _asked(self, member: int, method: str, path: str, body: object = None) -> dict[str, Any]:
        """What this member answers to somebody on its machine, in a moment; nothing if it does not."""
        if self.machines and not self.machines[member].is_on:
            return {}
        where = self.machines[member].inside() if self.machines else contextlib.nullcontext()
        connection = http.client.HTTPConnection(self.hosts[member], self.ports[member], timeout=1.0)
        with where, contextlib.closing(connection):
            try:
                connection.request(method, path, json.dumps(body or {}) if method == "POST" else None)
                answer: dict[str, Any] = json.loads(connection.getresponse().read())
                return answer
            except (OSError, http.client.HTTPException, ValueError):
                return {}

    def kill(self, member: int) -> None:
        child, self._children[member] = self._children[member], None
        assert child is not None
        child.kill()

    def pause(self, member: int) -> None:
        os.kill(self._pid(member), signal.SIGSTOP)

    def resume(self, member: int) -> None:
        os.kill(self._pid(member), signal.SIGCONT)

    def stop(self) -> None:
        """Also those that are stopped; SIGKILL ends them."""
        for child in self._children:
            if child is not None:
                child.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _pid(self, member: int) -> int:
        child = self._children[member]
        assert child is not None
        return child.pid
