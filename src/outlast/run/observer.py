"""Watching a job: a stream to the coordinator that leads, which is asked how things stand and tells of every
new view."""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing

from outlast.errors import OutlastError
from outlast.protocol.finding import Finder
from outlast.protocol.messages import Ask, Message
from outlast.wire.control import CONTROL
from outlast.wire.rundir import RunDirectory, RunFile
from outlast.wire.streams import Stream, connect

SILENT_FOR_S = 2.0
"""One that is asked all the time and says nothing for so long is not heard any more, though the connection is
there: of a frame that lacks a byte, the rest is waited for."""


async def watch(directory: RunDirectory, name: str, ask_every_s: float) -> AsyncGenerator[Message, None]:
    """All that the coordinators of a job say, across their restarts, for ever."""
    run, token = directory.read(), directory.token()
    finder = Finder(run.addresses, run.timing(), random.random)
    while True:
        rest_s: float | None = None
        try:
            async with aclosing(_heard(run, token, finder, name, ask_every_s)) as messages:
                async for message in messages:
                    rest_s = finder.heard(message, asyncio.get_running_loop().time())
                    if rest_s is not None:
                        break
                    yield message
        except (OSError, OutlastError):
            rest_s = None
        await asyncio.sleep(rest_s if rest_s is not None else finder.failed())


async def _heard(
    run: RunFile, token: bytes, finder: Finder, name: str, ask_every_s: float
) -> AsyncGenerator[Message, None]:
    """What one of them says, until it says nothing more."""
    async with await connect(
        finder.where,
        job=run.spec.name,
        token=token,
        role="observer",
        name=name,
        codec=CONTROL,
        deadline_s=finder.dial_within_s,
    ) as stream:
        asking = asyncio.ensure_future(_ask(stream, ask_every_s))
        try:
            while (message := await _next(stream, SILENT_FOR_S + ask_every_s)) is not None:
                yield message
        finally:
            asking.cancel()


async def _next(stream: Stream[Message], within_s: float) -> Message | None:
    """None at the end of the stream. TimeoutError is an OSError."""
    async with asyncio.timeout(within_s):
        return await anext(stream, None)


async def _ask(stream: Stream[Message], every_s: float) -> None:
    while True:
        stream.send(Ask())
        await asyncio.sleep(every_s)
