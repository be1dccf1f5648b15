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
SILENT_FOR_S = 2.0
"""One that is asked all the time and says nothing for so long is not heard any more, though the connection is
there: of a frame that lacks a byte, the rest is waited for."""


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
                while (message := await _next(stream, SILENT_FOR_S + ask_every_s)) is not None:
                    yield message
        except (OSError, OutlastError):
            pass
        await asyncio.sleep(DIAL_AGAIN_S)


async def _next(stream: Stream[Message], within_s: float) -> Message | None:
    """None at the end of the stream. TimeoutError is an OSError."""
    async with asyncio.timeout(within_s):
        return await anext(stream, None)


async def _ask(stream: Stream[Message], every_s: float | None) -> None:
    while True:
        stream.send(Ask())
        if every_s is None:
            return
        await asyncio.sleep(every_s)
