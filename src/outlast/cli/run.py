"""`outlast run`: a training script as several replicas on this machine."""

import argparse
import ast
import difflib
import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

from outlast.cli.launching import launch
from outlast.cli.machines import add_ticket_options, check_machines, with_ticket
from outlast.errors import ScriptNotFound, UsageError
from outlast.run.home import home
from outlast.run.options import Options

WORTH_PRELOADING = ("torch",)
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")


def main(argv: list[str]) -> int:
    own, program = split(argv, _parser())
    options, unknown = _parser().parse_known_args(own)
    if unknown:
        raise UsageError(_not_ours(unknown[0], argv))
    if not program:
        raise UsageError("nothing to run: outlast run -n 4 train.py [arguments of the script]")
    options.program = program
    _check(options)
    program, source = _locate(program)
    preload = options.preload.split(",") if options.preload is not None else preloads(source)
    prepared = Options(
        argv=tuple(program),
        replicas=options.replicas,
        base=home(),
        name=options.name,
        shards=options.shards,
        min_replicas=options.min_replicas,
        shadows=int(options.shadow),
        agents=options.agents,
        address=options.listen,
        coordinators=int(options.coordinators or 1) if options.ticket is None else 1,
        store=options.store.rstrip("/"),
        detect_within_s=options.detect_within,
        threads=options.threads,
        preload=tuple(module for module in preload if module),
        grace_s=options.grace,
    )
    return launch(with_ticket(prepared, options, source), plain=options.plain)


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UsageError("the current directory has been deleted; change to one that exists") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="outlast run",
        allow_abbrev=False,
        usage="outlast run [-n N] [options] script.py [args…]\n"
        "       outlast run [-n N] [options] -m module [args…]",
        description="Run a training script as N replicas on this machine. Replicas that die are replaced; "
        "the others go on. Ctrl-C stops everything in order, a second one at once.",
    )
    parser.add_argument("-n", "--replicas", type=int, default=1, metavar="N", help="how many replicas (1)")
    parser.add_argument("--name", help="the name of the run (made from the script's name and the time)")
    parser.add_argument(
        "--shards", type=int, metavar="V", help="parts of a global batch, fixed for the run (N)"
    )
    parser.add_argument(
        "--min-replicas", type=int, default=1, metavar="M", help="pause while fewer than M can train (1)"
    )
    parser.add_argument(
        "--shadow",
        action="store_true",
        help="one process more, which follows the others and writes the checkpoints, so that they need not",
    )
    parser.add_argument(
        "--threads", type=int, default=1, metavar="T", help="intra-op threads of each replica (1)"
    )
    parser.add_argument(
        "--detect-within",
        type=float,
        default=1.0,
        metavar="S",
        help="notice silent or hanging replicas within about S seconds (1.0); deaths are noticed at once",
    )
    parser.add_argument(
        "--preload",
        metavar="MODULES",
        help="import these, separated by commas, once for all replicas (torch, if the script imports it)",
    )
    parser.add_argument(
        "--grace", type=float, default=10.0, metavar="S", help="seconds to leave in when stopped (10)"
    )
    parser.add_argument(
        "--agents", type=int, default=1, metavar="K", help="agents to spread the replicas over (1)"
    )
    parser.add_argument(
        "--listen",
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="where the coordinator listens (any port)",
    )
    parser.add_argument(
        "--coordinators",
        metavar="K|HOST,…",
        help="how many coordinators, of which one leads; several need --store (1). With --ticket: the "
        "machines that are to run one, with a port if it is not 7700 (this one)",
    )
    parser.add_argument(
        "--store",
        default="",
        metavar="etcd://HOST:PORT,…/PREFIX",
        help="an etcd cluster that keeps what is agreed on (the run's directory)",
    )
    add_ticket_options(parser)
    parser.add_argument("--plain", action="store_true", help="plain lines even in a terminal")
    return parser


def split(argv: list[str], parser: argparse.ArgumentParser) -> tuple[list[str], list[str]]:
    """Our own options, and the program with its arguments, which are not ours to interpret."""
    takes_value = {
        name: action.nargs != 0 for action in parser._actions for name in action.option_strings if name
    }
    index = 0
    while index < len(argv):
        word = argv[index]
        if word == "--":
            return argv[:index], argv[index + 1 :]
        if word == "-m" or not word.startswith("-"):
            return argv[:index], argv[index:]
        attached = "=" in word or (word.startswith("-n") and word != "-n")
        index += 2 if takes_value.get(word, False) and not attached else 1
    return argv, []


def _not_ours(word: str, argv: list[str]) -> str:
    """What to do about an option that we do not have: mostly it is the script's."""
    option = word.partition("=")[0]
    known = [name for action in _parser()._actions for name in action.option_strings]
    similar = difflib.get_close_matches(option, known, n=1, cutoff=0.75)
    meant = f" Did you mean {similar[0]}?" if similar else ""
    at = next((at for at, other in enumerate(argv) if other.endswith(".py")), None)
    place = argv.index(word)
    example = "outlast run -n 4 train.py --lr 0.1"
    if at is not None and at > place:
        example = shlex.join(["outlast", "run", *argv[:place], argv[at], *argv[place:at], *argv[at + 1 :]])
    return (
        f"{option} is no option of outlast run.{meant} Options of the script come behind its name: {example}"
    )


def _check(options: argparse.Namespace) -> None:
    for name, value, least in (
        ("-n", options.replicas, 1),
        ("--agents", options.agents, 1),
        ("--threads", options.threads, 1),
        ("--shards", options.shards, 1),
    ):
        if value is not None and value < least:
            raise UsageError(f"{name} is {value}; use at least {least}")
    if not 0 <= options.grace < float("inf"):
        raise UsageError(f"--grace is {options.grace}; use a number of seconds, 0 or more")
    if any(not _is_text(word) for word in options.program):
        raise UsageError("the script and its arguments must be valid text in this locale's encoding")
    check_machines(options)
    if options.agents > options.replicas:
        raise UsageError(
            f"--agents is {options.agents}, more than the {options.replicas} replicas they would run"
        )
    if options.name is not None and not NAME.fullmatch(options.name):
        raise UsageError(
            f"--name is {options.name!r}; use letters, digits, dashes, underscores and, not in front, dots"
        )


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _locate(program: list[str]) -> tuple[list[str], Path | None]:
    """The program with its script's full path, and the file whose imports tell what to preload."""
    if program[0] == "-m":
        if len(program) < 2:
            raise UsageError("-m needs a module: outlast run -n 4 -m package.train")
        sys.path.insert(0, str(_here()))
        try:
            spec = find_spec(program[1])
        except ModuleNotFoundError as error:
            spec = None
            if not error.name or not f"{program[1]}.".startswith(f"{error.name}."):
                # The module is there, but something that it imports is not; it says so best itself.
                return program, None
        except Exception:
            # A package on the way fails at import, or the name is none: the replica's own words say more.
            return program, None
        if spec is None:
            raise ScriptNotFound(f"there is no module {program[1]} here or in this environment")
        return program, Path(spec.origin) if spec.origin else None
    here, script = _here(), Path(program[0])
    if not script.exists():
        where = "" if script.is_absolute() else f" in {here}"
        raise ScriptNotFound(f"there is no script {program[0]}{where}")
    if not script.is_file():
        raise ScriptNotFound(f"{program[0]} is not a file; give the script itself, or -m and a module")
    return [str(script.absolute()), *program[1:]], script


def preloads(source: Path | None) -> list[str]:
    """Modules worth importing once for all replicas: those of a known few that the script imports itself."""
    if source is None:
        return []
    try:
        tree = ast.parse(source.read_bytes())
    except (OSError, SyntaxError, ValueError):
        # The script will say so itself, in the replica's own words.
        return []
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    return [module for module in WORTH_PRELOADING if module in imported]
