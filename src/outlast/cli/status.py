"""`outlast status`: how a run stands, once or continuously."""

import argparse
import asyncio
import sys

import msgspec
from rich.console import Console
from rich.live import Live

from outlast.errors import CoordinatorLost
from outlast.protocol.messages import Ended, Status
from outlast.run.display import render
from outlast.run.home import find_run, home
from outlast.run.observer import observing, watch
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
    try:
        if options.watch:
            asyncio.run(_watch(directory))
        else:
            _show(asyncio.run(_ask(directory)), as_json=options.json)
    except KeyboardInterrupt:
        return 130
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
    except (OSError, TimeoutError):
        pass
    raise CoordinatorLost(
        f"nobody answers for the run {directory.name}: it has ended, or its coordinator is being restarted"
    )


async def _watch(directory: RunDirectory) -> None:
    status = await _ask(directory)
    with Live(render(status), console=Console(highlight=False), refresh_per_second=8) as live:
        async for message in watch(directory, "status", ASK_EVERY_S):
            if isinstance(message, Status):
                live.update(render(message))
                if message.outcome is not None:
                    return
            if isinstance(message, Ended):
                return


def _show(status: Status, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.buffer.write(msgspec.json.encode(status) + b"\n")
    else:
        Console(highlight=False).print(render(status))
