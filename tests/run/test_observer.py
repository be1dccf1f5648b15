"""Watching a job goes on whatever happens to the stream."""

import asyncio
import socket
from pathlib import Path

import pytest

from outlast.protocol.messages import Ask, Message, Status
from outlast.protocol.views import JobSpec, View
from outlast.run import observer
from outlast.wire.control import CONTROL
from outlast.wire.listener import Listener
from outlast.wire.rundir import RunDirectory, RunFile
from outlast.wire.streams import Stream
from patience import PATIENCE_S


def test_a_stream_that_lacks_a_byte_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The length of a frame is read from the wrong place then, and may be a million."""
    monkeypatch.setattr(observer, "SILENT_FOR_S", 0.1)
    directory = RunDirectory(tmp_path / "runs" / "job")
    streams: list[Stream[Message]] = []

    async def answer(stream: Stream[Message]) -> None:
        streams.append(stream)
        async for message in stream:
            if not isinstance(message, Ask):
                continue
            if len(streams) == 1:
                stream._transport.write(b"\0\x0f\xff\xff and not much more")
            else:
                stream.send(Status(job="job", view=View(number=7), seats=()))

    async def watch() -> Message:
        sock = socket.create_server(("127.0.0.1", 0))
        token = directory.create(
            RunFile(
                spec=JobSpec(name="job", replicas=1, shards=1),
                addresses=("{}:{}".format(*sock.getsockname()),),
                argv=("train.py",),
                working_directory="/",
            )
        )
        listener = await Listener.start(sock, job="job", token=token, codec=CONTROL, on_stream=answer)
        watching = observer.watch(directory, "launcher", 0.05)
        try:
            return await anext(watching)
        finally:
            await watching.aclose()
            await listener.close()

    message = asyncio.run(asyncio.wait_for(watch(), PATIENCE_S))
    assert isinstance(message, Status) and message.view.number == 7
    assert len(streams) == 2
