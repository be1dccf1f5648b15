"""`python -m outlast.agent --run DIR --name NAME --replicas 0,1`: one agent, as the launcher starts it."""

import argparse
import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from outlast.agent.service import NO_SPACE, AgentService
from outlast.errors import JobFailed, OutlastError, StoreError, StoreFull
from outlast.kinship import ExitStatus, die_with_parent
from outlast.observe.files import open_events
from outlast.observe.queue import Events
from outlast.wire.rundir import RunDirectory

LEFT = 13
"""Told to leave, and left; says nothing about the job."""


def replica_list(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of replica numbers like 0,1,2") from None


def exit_list(text: str) -> dict[int, ExitStatus]:
    pairs = (part.partition(":") for part in text.split(",") if part)
    return {int(replica): ExitStatus.of(int(code)) for replica, _, code in pairs}


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(
        prog="outlast agent",
        description="Start, watch and restart replicas of a job on this machine. SIGTERM makes them leave in "
        "order (preemption); nothing outlives the agent.",
    )
    arguments.add_argument("--run", type=Path, required=True, metavar="DIR", help="the run directory")
    arguments.add_argument("--run-id", default="", help=argparse.SUPPRESS)
    arguments.add_argument("--name", required=True, help="a name that no other agent of the job has")
    arguments.add_argument(
        "--replicas",
        type=replica_list,
        default=(),
        metavar="0,1,…",
        help="the replicas to run here, if the coordinator does not say which",
    )
    arguments.add_argument(
        "--grace", type=float, default=10.0, metavar="S", help="seconds to leave in after SIGTERM (10)"
    )
    # How replicas ended that an agent of this name could not tell of, as replica:code; a signal is negative.
    arguments.add_argument("--ended", type=exit_list, default={}, help=argparse.SUPPRESS)
    arguments.add_argument("--parent", type=int, metavar="PID", help="end when this process ends")
    return arguments


async def serve(arguments: argparse.Namespace, directory: RunDirectory, events: Events) -> int:
    service = AgentService(
        directory,
        arguments.name,
        arguments.replicas,
        grace_s=arguments.grace,
        ended=arguments.ended,
        emit=events.emit,
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, service.preempt)
    outcome = await service.run()
    if outcome is None:
        return LEFT
    return 0 if outcome.finished else JobFailed.exit_code


def main(argv: list[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="agent: %(message)s", stream=sys.stderr)
    signal.signal(signal.SIGINT, signal.SIG_IGN if arguments.parent else signal.SIG_DFL)
    if arguments.parent:
        die_with_parent(arguments.parent)
    directory = RunDirectory(arguments.run, arguments.run_id)
    try:
        with open_events(directory, arguments.name) as events:
            return asyncio.run(serve(arguments, directory, events))
    except OutlastError as error:
        print(f"agent: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"agent: {arguments.run} cannot be used: {error}", file=sys.stderr)
        return StoreFull.exit_code if error.errno in NO_SPACE else StoreError.exit_code


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
