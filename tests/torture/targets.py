"""The processes of a job, by what they are: found from outside, without asking any of them.

A job that is being tortured may have nobody who could answer, so its parts are known by who is whose child,
by their command lines, and by the names that the kernel shows for them.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from outlast.kinship import alive, children_of, stat

_REPLICA = re.compile(r"replica-(\d+)")


def of_kind(launcher: int, kind: str) -> list[int]:
    """The living processes of one kind, in a fixed order."""
    return sorted(pid for found, pid in everybody(launcher) if found == kind and alive(pid))


def replicas(launcher: int) -> dict[int, int]:
    """Which process is which replica."""
    found = {}
    for pid in of_kind(launcher, "replica"):
        if (process := stat(pid)) and (name := _REPLICA.fullmatch(process.name)):
            found[int(name[1])] = pid
    return found


def everybody(launcher: int) -> Iterator[tuple[str, int]]:
    yield "launcher", launcher
    for child in children_of(launcher):
        command = _command(child)
        if "outlast.coordinator" in command:
            yield "coordinator", child
        elif "outlast.agent" in command:
            yield "agent", child
            for pid in children_of(child):
                yield from _below_agent(pid)


def _below_agent(pid: int) -> Iterator[tuple[str, int]]:
    process = stat(pid)
    if process is None:
        return
    if _REPLICA.fullmatch(process.name):
        yield "replica", pid
        yield from (("worker", child) for child in children_of(pid))
    elif "outlast.agent.forkserver" in _command(pid) and not process.name.startswith("unborn-"):
        # What is just being forked, and is no replica yet, is called unborn.
        yield "forkserver", pid


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
