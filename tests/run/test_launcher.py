"""The launcher's ears; what it does with processes is tested on whole clusters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from outlast.protocol.messages import Ended, Message, Status
from outlast.protocol.views import Outcome, View
from outlast.run import launcher
from outlast.run.display import PlainDisplay
from outlast.run.launcher import Launcher, Options
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
