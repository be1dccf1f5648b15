"""The launcher's ears; what it does with processes is tested on whole clusters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from outlast.protocol.messages import Ended, Message, Status
from outlast.protocol.views import Member, Outcome, View
from outlast.run import launcher
from outlast.run.launcher import Launcher
from outlast.run.options import Options
from outlast.run.plain import PlainDisplay
from outlast.wire.rundir import RunDirectory

FINISHED = Outcome(finished=True, reason="all work is done")


@pytest.mark.parametrize(
    "news", [Ended(outcome=FINISHED), Status(job="job", view=View(), seats=(), outcome=FINISHED)]
)
def test_the_end_is_heard_from_whichever_coordinator_tells_it(
    news: Message, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is started after the end announces nothing any more, but it answers."""

    async def watch(*_: object) -> AsyncIterator[Message]:
        yield Status(job="job", view=View(), seats=())
        yield news

    async def observe() -> None:
        display = PlainDisplay()
        hearing = Launcher(Options(argv=("train.py",), replicas=1, base=tmp_path), display)
        await hearing._observe(RunDirectory(tmp_path))
        display.close()
        assert hearing._ended.is_set()
        assert hearing._outcome == FINISHED

    monkeypatch.setattr(launcher, "watch", watch)
    asyncio.run(observe())


def test_a_lack_of_replicas_is_said_once_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    lacking = Status(job="job", view=View(number=2, members=(Member(0, 1),), paused=True), seats=(), needed=2)
    enough = Status(job="job", view=View(number=3, members=(Member(0, 1), Member(1, 2))), seats=(), needed=2)

    async def watch(*_: object) -> AsyncIterator[Message]:
        for status in (lacking, lacking, enough, lacking):
            yield status

    async def observe() -> None:
        display = PlainDisplay()
        await Launcher(Options(argv=("train.py",), replicas=2, base=tmp_path), display)._observe(
            RunDirectory(tmp_path)
        )
        display.close()

    monkeypatch.setattr(launcher, "watch", watch)
    asyncio.run(observe())
    assert capfd.readouterr().err.count("waiting: 1 of at least 2 replicas") == 2
