"""`outlast events`: what happened in a run, as all of its processes tell it, in the order of time."""

import argparse
import sys
import time

from outlast.observe.reading import LOOK_EVERY_S, Entry, EventLog
from outlast.observe.sentences import sentence
from outlast.observe.written import Written
from outlast.run.home import alive, find_run, home

COLUMNS = 100
SOURCE_COLUMNS = 11


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="outlast events",
        description="Show what happened in a run: joins, deaths, views, evictions, steps, checkpoints.",
    )
    parser.add_argument("run", nargs="?", help="its name, the beginning of it, or its directory (the newest)")
    parser.add_argument("--follow", "-f", action="store_true", help="go on until the run ends, or Ctrl-C")
    parser.add_argument("--json", action="store_true", help="print lines of JSON (docs/events.md)")
    options = parser.parse_args(argv)
    directory = find_run(options.run, home())
    run = directory.read()
    with EventLog(directory.path) as events:
        while options.follow and alive(run):
            _show(events.read_settled(), as_json=options.json)
            time.sleep(LOOK_EVERY_S)
        # Whoever has ended by now has written all that it ever will.
        _show(events.read_all(), as_json=options.json)
    return 0


def _show(entries: list[Entry], *, as_json: bool) -> None:
    for entry in entries:
        if as_json:
            sys.stdout.write(entry.line.decode(errors="replace") + "\n")
        else:
            if entry.written.dropped:
                print(f"{'':{SOURCE_COLUMNS + 13}} … {entry.written.dropped} events are missing here")
            print(as_line(entry.written))
    sys.stdout.flush()


def as_line(written: Written) -> str:
    """One event for people, within 100 columns."""
    clock = time.strftime("%H:%M:%S", time.localtime(written.time))
    head = f"{clock}.{int(written.time % 1 * 1000):03d} {written.source:<{SOURCE_COLUMNS}}"
    # What a script's error says may have line breaks in it, and worse.
    line = "".join(c if c.isprintable() else " " for c in f"{head} {sentence(written.event)}")
    return line if len(line) <= COLUMNS else f"{line[: COLUMNS - 1]}…"
