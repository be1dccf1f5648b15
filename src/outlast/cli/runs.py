"""`outlast runs`: the runs on this machine; `outlast runs prune`: without the old ones."""

import argparse
import os
import shutil
import sys
import time

import msgspec

from outlast.errors import StoreError, UsageError
from outlast.run.home import home
from outlast.run.runs import Run, all_runs, remove, to_prune
from outlast.run.words import DAY_S, age, counted, size

VERSION = 1
OLD_DAYS = 30.0


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="outlast runs",
        description="List the runs on this machine, the newest first; or remove old ones that have ended.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object (docs/commands.md)")
    commands = parser.add_subparsers(dest="command", metavar="prune")
    prune = commands.add_parser("prune", help="remove the directories of runs that have ended")
    prune.add_argument(
        "--older-than",
        type=float,
        metavar="DAYS",
        help=f"those that ended so long ago ({OLD_DAYS:.0f}; with --keep alone, 0)",
    )
    prune.add_argument(
        "--keep", type=int, default=0, metavar="K", help="but not the newest K that have ended (0)"
    )
    prune.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    options = parser.parse_args(argv)
    if options.command == "prune":
        return _prune(options)
    runs = all_runs(home())
    if options.json:
        _print_json(runs)
    elif runs:
        print("\n".join(_table(runs)))
    else:
        print(f"there is no run in {home() / 'runs'} yet; start one with `outlast run -n 2 train.py`")
    return 0


def _table(runs: list[Run]) -> list[str]:
    now = time.time()
    rows = [("RUN", "OUTCOME", "STARTED", "SIZE", "COMMAND")]
    rows += [
        (run.directory.name, run.outcome, age(now - run.began_at), size(run.size_bytes), run.command)
        for run in runs
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]])
        for row in rows
    ]
    if not sys.stdout.isatty():
        return lines
    columns = shutil.get_terminal_size().columns
    return [line if len(line) <= columns else f"{line[: columns - 1]}…" for line in lines]


def _print_json(runs: list[Run]) -> None:
    told = [
        {
            "run": run.directory.name,
            "directory": str(run.directory.path),
            "state": run.state,
            "exit_code": run.exit_code,
            "began_at": run.began_at,
            "ended_at": run.ended_at,
            "size_bytes": run.size_bytes,
            "step": run.step,
            "total": run.total or None,
            "command": run.command,
        }
        for run in runs
    ]
    sys.stdout.write(msgspec.json.encode({"version": VERSION, "runs": told}).decode() + "\n")


def _prune(options: argparse.Namespace) -> int:
    days = options.older_than
    if days is None:
        days = 0.0 if options.keep else OLD_DAYS
    if not 0 <= days < float("inf") or options.keep < 0:
        raise UsageError("--older-than is a number of days and --keep a number of runs, 0 or more")
    found = to_prune(all_runs(home()), time.time(), older_than_s=days * DAY_S, keep=options.keep)
    removed = [run for run in found if options.dry_run or _removed(run)]
    for run in removed:
        words = f"{run.outcome}, {size(run.size_bytes)}"
        print(f"{'would remove' if options.dry_run else 'removed'} {run.directory.name} ({words})")
    total = f"{counted(len(removed), 'run')}, {size(sum(run.size_bytes for run in removed))}"
    print(f"{total} would be freed" if options.dry_run else f"{total} freed")
    return 0 if len(removed) == len(found) else StoreError.exit_code


def _removed(run: Run) -> bool:
    try:
        remove(run)
    except OSError as error:
        where = os.fspath(error.filename or run.directory.path)
        print(f"outlast: {run.directory.name} is not removed: {where}: {error.strerror}", file=sys.stderr)
        return False
    return True
