"""The `outlast` command: one file per subcommand, imported only when it is asked for."""

import argparse
import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module

from outlast.entry import leave_at_once
from outlast.errors import OutlastError

COMMANDS = {
    "run": "run a training script as several replicas on this machine",
    "status": "show how a run stands, or how it ended",
    "logs": "show what the replicas of a run have printed",
    "events": "show what happened in a run, as its processes tell it",
    "runs": "list the runs on this machine, and remove old ones",
    "checkpoints": "list, show, verify, export, import and prune checkpoints",
    "rewind": "let the next run go on from an older checkpoint",
    "audit": "check that every sample was used exactly once per pass",
    "etcd": "start, check and prune an etcd cluster for runs on many machines",
    "sim": "run the protocol in seeded simulation",
    "agent": "start, watch and restart replicas (started by `run`)",
    "coordinator": "decide membership (started by `run`)",
}

INTERRUPTED = 130
EXIT_CODES = """exit codes:
  0  finished                    6  no space left for the coordinator's store
  1  an error in Outlast itself  7  the coordinator's store is damaged
  2  wrong usage                 8  the coordinator's store cannot be used
  3  the script is not there     9  the storage of checkpoints cannot be used
  4  the job failed             10  no checkpoint can be used, or made
  5  the port is in use         11  no coordinator answers
                               130  stopped by Ctrl-C, 143  by SIGTERM"""


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    _open_streams()
    parser = argparse.ArgumentParser(
        prog="outlast",
        description="PyTorch training that outlasts its machines.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    chosen = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, summary in COMMANDS.items():
        chosen.add_parser(name, help=summary, add_help=False)
    options, rest = parser.parse_known_args(arguments[:1])
    if options.version:
        from importlib.metadata import version

        print(f"outlast {version('outlast')}")
        return 0
    if options.command is None:
        parser.print_help(sys.stderr if rest else sys.stdout)
        return 2
    try:
        code = _run(options.command, arguments[1:])
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        code = 0
    except OutlastError as error:
        print(f"outlast: {error}", file=sys.stderr)
        code = error.exit_code
    _flush()
    return code


def _run(name: str, arguments: list[str]) -> int:
    if name != "run" and signal.getsignal(signal.SIGINT) is leave_at_once:
        # From here on there may be something to put in order first.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command: Callable[[list[str]], int] = import_module(f"outlast.cli.{name}").main
    return command(arguments)


def _flush() -> None:
    """Who reads our output may have seen enough of it, as in `outlast logs | head`."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_streams() -> None:
    """A shell or a scheduler may have closed our output; what is said then goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (it stays open to the end)
