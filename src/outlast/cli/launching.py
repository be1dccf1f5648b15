"""What the commands that launch something have in common."""

import asyncio
import contextlib
import os
import resource
import signal
import sys

from outlast.coordinator.reading import outcome_of
from outlast.coordinator.store.etcd import EtcdStore
from outlast.coordinator.storekeeper import agreed
from outlast.errors import JobFailed, OutlastError, StoreError
from outlast.run.display import Display
from outlast.run.launcher import Launcher
from outlast.run.live import LiveDisplay
from outlast.run.options import Options
from outlast.run.plain import PlainDisplay

OPEN_TO_ALL = (
    "messages between machines are not encrypted (--insecure): whoever is on their network can read and "
    "change them"
)


def launch(options: Options, *, plain: bool) -> int:
    display: Display = LiveDisplay() if _draws() and not plain else PlainDisplay()
    _raise_open_files()
    code = OutlastError.exit_code
    try:
        code = asyncio.run(_run(options, display))
    except OutlastError as error:
        code = error.exit_code
        raise
    finally:
        # What is left to do takes no longer than anybody can wait, and ends with this code in any case.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if not display.close():
            # The terminal takes nothing more, and an orderly exit would wait for it to.
            os._exit(code)
    return code


async def _run(options: Options, display: Display) -> int:
    if options.store:
        # What is wrong with it is better known before anything has begun.
        try:
            store = await EtcdStore.open(options.store)
            try:
                # Each member says who it is by itself; only a majority of them answers this.
                ended = agreed(await store.read(""))
            finally:
                await store.close()
        except StoreError as error:
            if type(error) is not StoreError:
                raise
            where = options.store.rpartition("/")[0]
            raise StoreError(f"{error}; `outlast etcd check {where}` looks closer") from None
        if ended is not None and ended.outcome is not None:
            how = "has finished" if ended.outcome.finished else f"has failed: {ended.outcome.reason}"
            display.say(f"there is nothing to join: {options.name} {how}")
            return 0 if ended.outcome.finished else JobFailed.exit_code
        if store.warning:
            display.say(store.warning)
    if options.machine is not None and options.machine.ticket.insecure:
        display.say(OPEN_TO_ALL)
    return await Launcher(options, display, outcome_of).run()


def _draws() -> bool:
    """Whether our output goes to a terminal on which lines can be drawn anew."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def _raise_open_files() -> None:
    """Agents need a few descriptors per replica; the soft limit is often far below what is allowed."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
