"""`python -m bench NAME [--json]`, or `all`: measure, and hold the figures against what was promised.

The exit code is 0 even if a bound is missed: a benchmark measures, and a busy machine is no failure. Progress
goes to standard error; with --json the last line of standard output is one JSON object. With --tiny a
benchmark is as small as it can be: that shows that it still runs, and its figures mean nothing.

A benchmark is imported when it is asked for and not before. One that cannot run, since a package is missing
or for whatever other reason, keeps no other from running: `all` goes on without it, says so in its place,
and ends with exit code 1.
"""

import argparse
import ast
import json
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from rich.console import Console

from bench.result import Result

BENCHMARKS = (
    "checkpoint",
    "footprint",
    "detect",
    "digests",
    "failover",
    "fleet",
    "load",
    "machines",
    "overhead",
    "recovery",
    "rejoin",
    "rules",
    "screening",
    "byzantine",
)
EVERY = "all"


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    names = asked_for(arguments)
    options = parser(names).parse_args(arguments)
    # Whoever stops us wants all that we started to end as well, so leave through every `finally`.
    signal.signal(signal.SIGTERM, _stop)
    found: dict[str, Result | Exception] = {}
    for name in names:
        print(f"bench: {name} …", file=sys.stderr, flush=True)
        found[name] = _found_by(name, options)
    if not options.json:
        console = Console()
        for result in found.values():
            if isinstance(result, Result):
                result.print_table(console)
    elif options.name == EVERY:
        print(json.dumps({name: _as_dict(result) for name, result in found.items()}))
    else:
        for result in found.values():
            if isinstance(result, Result):
                print(result.as_json())
    return int(any(isinstance(result, Exception) for result in found.values()))


def asked_for(arguments: Sequence[str]) -> tuple[str, ...]:
    """The benchmarks that a command line is about; none if it only wants to know which there are."""
    name = arguments[0] if arguments else ""
    if name == EVERY:
        return tuple(BENCHMARKS)
    return (name,) if name in BENCHMARKS else ()


def parser(names: Sequence[str]) -> argparse.ArgumentParser:
    """Knows all benchmarks, and the options of these."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure what Outlast promises, on this machine."
    )
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name in BENCHMARKS:
        said = described(name)
        one = commands.add_parser(name, help=said.partition("\n")[0], description=said)
        one.formatter_class = argparse.RawDescriptionHelpFormatter
        if tuple(names) == (name,):
            _module(name).add_options(one)
        _add_common(one)
    every = commands.add_parser(EVERY, help="All of them, one after the other.")
    if len(names) > 1:
        for name in names:
            try:
                _module(name).add_options(every)
            except ImportError:
                # It is said in its turn; its options do not matter, since it cannot run.
                continue
    _add_common(every)
    return parser


def described(name: str) -> str:
    """What a benchmark says of itself; it need not be imported for that."""
    source = Path(__file__).with_name(f"{name}.py").read_text()
    return ast.get_docstring(ast.parse(source)) or ""


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument(
        "--tiny", action="store_true", help="a few seconds, to see that it runs; its figures mean nothing"
    )


def _module(name: str) -> ModuleType:
    return import_module(f"bench.{name}")


def _found_by(name: str, options: argparse.Namespace) -> Result | Exception:
    try:
        result: Result = _module(name).run(options)
    except ModuleNotFoundError as error:
        said = f"bench: {name} cannot run without {error.name}: pip install -e '.[dev]'"
        print(said, file=sys.stderr, flush=True)
        return error
    except Exception as error:
        traceback.print_exc()
        print(f"bench: {name} failed", file=sys.stderr, flush=True)
        return error
    return result


def _as_dict(result: Result | Exception) -> dict[str, Any]:
    if isinstance(result, Result):
        return result.as_dict()
    return {"ok": False, "failed": f"{type(result).__name__}: {result}"}


def _stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise SystemExit(128 + number)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
