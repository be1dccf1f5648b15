"""A real etcd: one member or several, on loopback, tuned so that a lost leader is replaced in a moment.

`scripts/etcd-binary` gets the program.
"""

import http.client
import json
import os
import shutil
import signal
from base64 import b64decode
from pathlib import Path
from typing import Any

from servers.children import Child, free_ports

PROGRAM = Path(os.environ.get("OUTLAST_ETCD", Path(__file__).parents[2] / ".venv" / "etcd" / "etcd"))


def missing() -> str | None:
    """Why there is no such server on this machine; None if there is."""
    return None if PROGRAM.exists() else "no etcd: run scripts/etcd-binary"


class Etcd:
    """`wait` returns when all members serve; then each may be killed, stopped and started again at will."""

    def __init__(self, folder: Path, members: int = 1, **options: str) -> None:
        """`options` are etcd's own, beside those that it needs here."""
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._options = options
        ports = free_ports(2 * members)
        self.ports, self._peers = ports[:members], ports[members:]
        self._children: list[Child | None] = [None] * members
        for member in range(members):
            self.start(member)

    def address(self, prefix: str) -> str:
        return f"etcd://{','.join(f'127.0.0.1:{port}' for port in self.ports)}/{prefix}"

    def start(self, member: int) -> None:
        assert self._children[member] is None
        client, peer = (f"http://127.0.0.1:{ports[member]}" for ports in (self.ports, self._peers))
        cluster = ",".join(f"m{at}=http://127.0.0.1:{port}" for at, port in enumerate(self._peers))
        options = {
            "name": f"m{member}",
            "data-dir": str(self._folder / f"m{member}"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": cluster,
            "heartbeat-interval": "20",
            "election-timeout": "200",
            "logger": "zap",
            "log-level": "error",
            **self._options,
        }
        command = [str(PROGRAM), "--pre-vote", *(f"--{name}={value}" for name, value in options.items())]
        self._children[member] = Child(command, self._folder / f"m{member}.log")

    def wait(self) -> None:
        for member, child in enumerate(self._children):
            if child is not None:
                child.wait_until(lambda member=member: self.is_healthy(member))

    def is_healthy(self, member: int) -> bool:
        """Whether it can have something agreed on."""
        return self._asked(member, "GET", "/health").get("health") == "true"

    def leader(self) -> int:
        """Which member leads; -1 if none does."""
        for member, child in enumerate(self._children):
            if child is not None:
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
        """What this member answers, in a moment; nothing if it does not."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[member], timeout=1.0)
        try:
            connection.request(method, path, json.dumps(body or {}) if method == "POST" else None)
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
            return answer
        except (OSError, http.client.HTTPException, ValueError):
            return {}
        finally:
            connection.close()

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
