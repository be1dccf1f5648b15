"""`python -m outlast.coordinator --run DIRECTORY`: the coordinator of one job, as the launcher starts it."""

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from pathlib import Path

from outlast.coordinator.service import CoordinatorService
from outlast.coordinator.store.embedded import EmbeddedStore
from outlast.coordinator.store.etcd import EtcdStore
from outlast.coordinator.store.seam import Store
from outlast.errors import OutlastError, StoreError
from outlast.kinship import die_with_parent
from outlast.observe.files import open_events
from outlast.observe.queue import Events
from outlast.wire.rundir import RunDirectory

OPEN_AGAIN_S = 0.5

log = logging.getLogger(__name__)


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(
        prog="outlast coordinator",
        description="Decide who takes part in a job. Its whole state is in the store: kill it at any "
        "time and start it again. `outlast run` does both by itself.",
    )
    arguments.add_argument("--run", type=Path, required=True, metavar="DIR", help="the run directory")
    arguments.add_argument("--run-id", default="", help=argparse.SUPPRESS)
    arguments.add_argument("--index", type=int, default=0, metavar="I", help="which of several it is (0)")
    arguments.add_argument("--listen-fd", type=int, metavar="FD", help="a listening socket to take over")
    arguments.add_argument("--parent", type=int, metavar="PID", help="end when this process ends")
    return arguments


async def open_store(address: str, directory: RunDirectory) -> Store:
    """A cluster that has no majority, or cannot be reached from here, is waited for: whoever began the job
    has seen it, and this process is of no use without it."""
    if not address:
        return await EmbeddedStore.open(directory.store)
    said = ""
    while True:
        try:
            return await EtcdStore.open(address)
        except StoreError as error:
            if str(error) != said:
                said = str(error)
                log.warning("waiting for the store: %s", said)
        await asyncio.sleep(OPEN_AGAIN_S)


async def serve(directory: RunDirectory, index: int, listen_fd: int | None, events: Events) -> None:
    run = directory.read()
    store = await open_store(run.store, directory)
    try:
        address = run.addresses[index]
        service = CoordinatorService(
            spec=run.spec,
            timing=run.timing(),
            token=directory.token(),
            store=store,
            address=address,
            allow_remote=run.insecure,
            emit=events.emit,
        )
        serving = asyncio.ensure_future(
            service.run(address if listen_fd is None else socket.socket(fileno=listen_fd))
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, serving.cancel)
        await serving
    except asyncio.CancelledError:
        pass
    finally:
        await store.close()


def main(argv: list[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="coordinator: %(message)s", stream=sys.stderr)
    signal.signal(signal.SIGINT, signal.SIG_IGN if arguments.parent else signal.SIG_DFL)
    if arguments.parent:
        die_with_parent(arguments.parent)
    directory = RunDirectory(arguments.run, arguments.run_id)
    name = "coordinator" if not arguments.index else f"coordinator-{arguments.index}"
    try:
        with open_events(directory, name) as events:
            asyncio.run(serve(directory, arguments.index, arguments.listen_fd, events))
    except OutlastError as error:
        print(f"coordinator: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)
