"""`outlast status`: how a run stands, once or continuously."""

import argparse
import asyncio
import sys

import msgspec
from rich.console import Console
from rich.live import Live

from outlast.errors import CoordinatorLost, PeerRejected, ProtocolError
from outlast.protocol.messages import Status
from outlast.run.display import render
from outlast.run.home import alive, find_run, home
from outlast.run.observer import observing
from outlast.wire.rundir import RunDirectory

ANSWER_WITHIN_S = 3.0
ASK_EVERY_S = 0.25


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="outlast status", description="Show how a run stands.")
    parser.add_argument("run", nargs="?", help="its name or directory (the newest one)")
    parser.add_argument("--watch", action="store_true", help="keep showing it, until the job ends or Ctrl-C")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args(argv)
    directory = find_run(options.run, home())
    if options.watch:
        asyncio.run(_watch(directory))
    else:
        _show(asyncio.run(_ask(directory)), as_json=options.json)
    return 0


async def _ask(directory: RunDirectory) -> Status:
    try:
        async with (
            asyncio.timeout(ANSWER_WITHIN_S),
            observing(directory, "status", ANSWER_WITHIN_S) as stream,
        ):
            async for message in stream:
                if isinstance(message, Status):
                    return message
    except (OSError, TimeoutError, PeerRejected, ProtocolError):
        # If somebody else has the port now, the run is over all the same.
        pass
    raise CoordinatorLost(
        f"nobody answers for the run {directory.name}: it has ended, or its coordinator is being restarted"
    )


async def _watch(directory: RunDirectory) -> None:
    status = await _ask(directory)
    with Live(render(status), console=Console(highlight=False), refresh_per_second=8) as live:
        while status.outcome is None:
            await asyncio.sleep(ASK_EVERY_S)
            try:
                status = await _ask(directory)
            except CoordinatorLost:
                if not alive(directory.read()):
                    return
            live.update(render(status))


def _show(status: Status, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.buffer.write(msgspec.json.encode(status) + b"\n")
    else:
        Console(highlight=False).print(render(status))
