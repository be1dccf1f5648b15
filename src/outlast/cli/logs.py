"""`outlast logs`: what the replicas of a run have printed, and with --follow, what they print."""

import argparse
import sys
import time

from outlast.errors import UsageError
from outlast.run.home import alive, find_run, home
from outlast.run.logs import LogFile, log_files
from outlast.wire.rundir import RunDirectory

LOOK_EVERY_S = 0.2


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="outlast logs",
        description="Show what the replicas of a run have printed, in all of their lives.",
    )
    parser.add_argument("run", nargs="?", help="its name, the beginning of it, or its directory (the newest)")
    parser.add_argument("--replica", type=int, metavar="K", help="of this one alone")
    parser.add_argument("--follow", "-f", action="store_true", help="go on until the run ends, or Ctrl-C")
    options = parser.parse_args(argv)
    directory = find_run(options.run, home())
    run = directory.read()
    if options.replica is not None and not 0 <= options.replica < run.spec.processes:
        raise UsageError(
            f"--replica is {options.replica}; {directory.name} has 0 to {run.spec.processes - 1}"
        )
    width = len(str(run.spec.processes - 1))
    known: dict[int, LogFile] = {}
    while True:
        # Whoever has ended before this look has written all that it ever will.
        over = not (options.follow and alive(run))
        _show_new(directory, options.replica, known, width, last=over)
        if over:
            return 0
        time.sleep(LOOK_EVERY_S)


def _show_new(
    directory: RunDirectory, replica: int | None, known: dict[int, LogFile], width: int, *, last: bool
) -> None:
    for log in log_files(directory, replica):
        log = known.setdefault(log.replica, log)
        head = f"[{log.replica:>{width}}] " if replica is None else ""
        for line in log.lines(last=last):
            print(f"{head}{line}")
    sys.stdout.flush()
