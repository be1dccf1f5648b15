"""`outlast status`: how a run stands, once or continuously, or how it ended."""

import argparse
import asyncio
import sys
import time
from contextlib import aclosing

import msgspec
from rich.console import Console
from rich.live import Live

from outlast.errors import CoordinatorLost
from outlast.protocol.messages import Status
from outlast.run import ended
from outlast.run.farewell import farewell, interrupted
from outlast.run.home import alive, find_run, home
from outlast.run.observer import watch
from outlast.run.picture import render
from outlast.run.remains import remains
from outlast.run.report import report_ended, report_running
from outlast.run.scene import Scene, scene_of
from outlast.run.words import age
from outlast.wire.rundir import RunDirectory

ANSWER_WITHIN_S = 3.0
ASK_EVERY_S = 0.25


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="outlast status", description="Show how a run stands, or how it ended."
    )
    parser.add_argument("run", nargs="?", help="its name, the beginning of it, or its directory (the newest)")
    parser.add_argument("--watch", action="store_true", help="keep showing it, until the job ends or Ctrl-C")
    parser.add_argument("--json", action="store_true", help="print one JSON object (docs/commands.md)")
    options = parser.parse_args(argv)
    directory = find_run(options.run, home())
    run = directory.read()
    status = None
    if alive(run):
        if options.watch and not options.json:
            asyncio.run(_watch(directory))
        else:
            status = _ask_once(directory)
    if status is None:
        _tell_end(directory, as_json=options.json)
    elif options.json:
        _print_json(report_running(directory, run, status))
    else:
        Console(highlight=False).print(render(scene_of(status, preload=run.preload)))
    return 0


def _ask_once(directory: RunDirectory) -> Status | None:
    """None if the run has ended meanwhile."""
    try:
        return asyncio.run(_ask(directory))
    except CoordinatorLost:
        if alive(directory.read()):
            raise
        return None


async def _ask(directory: RunDirectory) -> Status:
    try:
        async with (
            asyncio.timeout(ANSWER_WITHIN_S),
            aclosing(watch(directory, "status", ANSWER_WITHIN_S)) as messages,
        ):
            async for message in messages:
                if isinstance(message, Status):
                    return message
    except TimeoutError:
        # If somebody else has the port now, the run is over all the same.
        pass
    raise CoordinatorLost(
        f"nobody answers for the run {directory.name}: it is ending, or its coordinator is being restarted"
    )


async def _watch(directory: RunDirectory) -> None:
    preload = directory.read().preload
    console = Console(highlight=False)
    with Live(
        render(Scene(run=directory.name)), console=console, refresh_per_second=8, transient=True
    ) as live:
        while alive(directory.read()):
            try:
                status = await _ask(directory)
            except CoordinatorLost:
                pass
            else:
                live.update(render(scene_of(status, preload=preload)))
            await asyncio.sleep(ASK_EVERY_S)


def _tell_end(directory: RunDirectory, *, as_json: bool) -> None:
    ending = ended.read(directory)
    if as_json:
        _print_json(report_ended(directory, directory.read(), ending))
    elif ending is None:
        print(f"{directory.name}: {interrupted(remains(directory))}")
    else:
        print(f"{directory.name}: ended {age(time.time() - ending.ended_at)}")
        for line in farewell(directory.name, ending):
            print(line)


def _print_json(report: object) -> None:
    sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
