"""Shared by the tests of the agent's processes: start a script given as text, and leave nothing behind."""

from __future__ import annotations

import asyncio
import os
import textwrap
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from leaks import nothing_new
from outlast import kinship
from outlast.agent.output import Output, Stream
from outlast.agent.process import ExitStatus, Nursery, ReplicaProcess
from patience import PATIENCE_S


@dataclass
class Launched:
    """A replica that runs, and what it has said so far."""

    process: ReplicaProcess
    lines: list[tuple[Stream, str]] = field(default_factory=list)

    def said(self, stream: Stream) -> list[str]:
        return [line for where, line in self.lines if where == stream]

    async def ended(self) -> ExitStatus:
        return await asyncio.wait_for(asyncio.shield(self.process.exited), PATIENCE_S)

    async def line(self, number: int = 0) -> str:
        await until(lambda: len(self.said("stdout")) > number or self.process.exited.done())
        assert len(self.said("stdout")) > number, (self.process.exited, self.lines)
        return self.said("stdout")[number]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 (what is waited for happens in other processes)
            await asyncio.sleep(0.005)


Launch = Callable[..., Awaitable[Launched]]


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """`await launch(nursery, source, *args)` writes the source to a file and starts it as a replica."""
    count = 0

    async def start(
        nursery: Nursery,
        source: str,
        *args: str,
        name: str = "script.py",
        argv: list[str] | None = None,
        environment: dict[str, str] | None = None,
        cwd: Path = tmp_path,
    ) -> Launched:
        nonlocal count
        count += 1
        script, text = tmp_path / name, textwrap.dedent(source)
        # Not written again when it is the same: an earlier replica may be about to read it.
        if not script.exists() or script.read_text() != text:
            script.write_text(text)
        lines: list[tuple[Stream, str]] = []
        process = await nursery.start(
            replica=count,
            process=f"life-{count}",
            argv=argv or [name, *args],
            environment=dict(os.environ) if environment is None else environment,
            cwd=cwd,
            output=Output(count, sink=lambda _replica, stream, line: lines.append((stream, line))),
        )
        return Launched(process, lines)

    return start


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    return until


Offspring = Callable[[], list[int]]


@pytest.fixture
def offspring() -> Offspring:
    """The children that the test got itself. Tests before it may have left others, like compilers."""
    earlier = set(kinship.children_of(os.getpid()))
    return lambda: [pid for pid in kinship.children_of(os.getpid()) if pid not in earlier]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    with nothing_new():
        yield
