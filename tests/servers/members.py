"""Members of an etcd cluster as people start them: by `outlast etcd start`, on loopback."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

from outlast.kinship import children_of
from patience import PATIENCE_S
from servers.children import Child, free_ports
from servers.etcd import PROGRAM


class Members:
    """Each has a folder of its own; all output of all commands of one member is in one file."""

    def __init__(self, folder: Path, names: str = "abc") -> None:
        self.folder = folder
        self.home = folder / "home"
        self._children: dict[str, Child] = {}
        self._logs: dict[str, int] = {}
        self.places = {name: self.free_place() for name in names}

    def free_place(self) -> str:
        client, peer = free_ports(2)
        return f"127.0.0.1:{client}:{peer}"

    def endpoint(self, name: str) -> str:
        return self.places[name].rpartition(":")[0]

    def endpoints(self, names: str) -> str:
        return ",".join(self.endpoint(name) for name in names)

    @property
    def listed(self) -> str:
        return ",".join(f"{name}={place}" for name, place in self.places.items())

    def data(self, name: str) -> Path:
        return self.home / "etcd" / name

    def start(self, name: str, *options: str) -> None:
        """With these options, or else as one of a new cluster of all."""
        assert name not in self._children
        log = self.folder / f"{name}.log"
        self._logs[name] = len(log.read_text()) if log.exists() else 0
        options = options or ("--members", self.listed)
        command = [sys.executable, "-m", "outlast", "etcd", "start", "--name", name, *options]
        self._children[name] = Child(
            command, log, env={"OUTLAST_HOME": str(self.home), "OUTLAST_ETCD": str(PROGRAM)}
        )

    def start_all(self) -> None:
        for name in self.places:
            self.start(name)
        for name in self.places:
            self.wait_for(name, "--store etcd://")

    def said(self, name: str) -> str:
        """By its newest command."""
        return (self.folder / f"{name}.log").read_text(errors="replace")[self._logs[name] :]

    def wait_for(self, name: str, words: str) -> None:
        self._children[name].wait_until(lambda: words in self.said(name))

    def end(self, name: str, number: int | None = None) -> int:
        """Wait for the end of a command, after this signal if one is given; its status."""
        child = self._children.pop(name)
        if number is not None:
            os.kill(child.pid, number)
        return child.end(PATIENCE_S)

    def kill(self, name: str) -> None:
        self._children.pop(name).kill()

    def server(self, name: str) -> int:
        """The process of etcd itself."""
        (pid,) = children_of(self._children[name].pid)
        return pid

    def stop(self) -> None:
        for name in list(self._children):
            self.end(name, signal.SIGKILL)
        shutil.rmtree(self.home, ignore_errors=True)
