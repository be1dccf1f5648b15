"""Watching a job: a stream to its coordinator that asks how things stand and hears of every new view."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from outlast.errors import OutlastError
from outlast.protocol.messages import Ask, Message
from outlast.wire.control import CONTROL
from outlast.wire.rundir import RunDirectory
from outlast.wire.streams import Stream, connect

DIAL_AGAIN_S = 0.05


@asynccontextmanager
async def observing(
    directory: RunDirectory, name: str, deadline_s: float, ask_every_s: float | None = None
) -> AsyncIterator[Stream[Message]]:
    """One stream to the coordinator, with a question now and every `ask_every_s`."""
    run = directory.read()
    stream = await connect(
        run.address,
        job=run.spec.name,
        token=directory.token(),
        role="observer",
        name=name,
        codec=CONTROL,
        deadline_s=deadline_s,
    )
    asking = asyncio.ensure_future(_ask(stream, ask_every_s))
    try:
        yield stream
    finally:
        asking.cancel()
        stream.close()
        await stream.wait_closed()


async def watch(directory: RunDirectory, name: str, ask_every_s: float) -> AsyncIterator[Message]:
    """All that the coordinators of a job say, across their restarts, for ever."""
    while True:
        try:
            async with observing(directory, name, 2.0, ask_every_s) as stream:
                async for message in stream:
                    yield message
        except (OSError, OutlastError):
            pass
        await asyncio.sleep(DIAL_AGAIN_S)


async def _ask(stream: Stream[Message], every_s: float | None) -> None:
    while True:
        stream.send(Ask())
        if every_s is None:
            return
        await asyncio.sleep(every_s)
