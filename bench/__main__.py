"""`python -m bench NAME [--json]`, or `all`: measure, and hold the figures against what was promised.

The exit code is 0 even if a bound is missed: a benchmark measures, and a busy machine is no failure. Progress
goes to standard error; with --json the last line of standard output is one JSON object.
"""

import argparse
import json
import signal
import sys
from types import FrameType, ModuleType

from rich.console import Console

from bench import (
    byzantine,
    checkpoint,
    detect,
    digests,
    failover,
    footprint,
    load,
    overhead,
    recovery,
    rejoin,
    rules,
    screening,
)
from bench.result import Result

BENCHMARKS: dict[str, ModuleType] = {
    "checkpoint": checkpoint,
    "footprint": footprint,
    "detect": detect,
    "digests": digests,
    "failover": failover,
    "load": load,
    "overhead": overhead,
    "recovery": recovery,
    "rejoin": rejoin,
    "rules": rules,
    "screening": screening,
    "byzantine": byzantine,
}


def main(argv: list[str] | None = None) -> int:
    options = parser().parse_args(argv)
    # Whoever stops us wants all that we started to end as well, so leave through every `finally`.
    signal.signal(signal.SIGTERM, _stop)
    names = list(BENCHMARKS) if options.name == "all" else [options.name]
    results = []
    for name in names:
        print(f"bench: {name} …", file=sys.stderr, flush=True)
        results.append(_run(name, options))
    if not options.json:
        console = Console()
        for result in results:
            result.print_table(console)
    elif options.name == "all":
        print(json.dumps({result.name: result.as_dict() for result in results}))
    else:
        print(results[0].as_json())
    return 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure what Outlast promises, on this machine."
    )
    names = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, module in BENCHMARKS.items():
        one = names.add_parser(name, help=_first_line(module), description=module.__doc__)
        one.formatter_class = argparse.RawDescriptionHelpFormatter
        module.add_options(one)
        _add_json(one)
    every = names.add_parser("all", help="All of them, one after the other.")
    for module in BENCHMARKS.values():
        module.add_options(every)
    _add_json(every)
    return parser


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def _first_line(module: ModuleType) -> str:
    return (module.__doc__ or "").partition("\n")[0]


def _run(name: str, options: argparse.Namespace) -> Result:
    result: Result = BENCHMARKS[name].run(options)
    return result


def _stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise SystemExit(128 + number)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
