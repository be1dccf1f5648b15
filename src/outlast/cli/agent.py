"""`outlast agent --join TICKET`: this machine takes part in a job. Without a ticket: one agent by itself, as
the launcher starts it."""

import argparse
import sys
from pathlib import Path

from outlast.agent.__main__ import main as agent_itself
from outlast.cli.launching import launch
from outlast.cli.machines import add_machine_options
from outlast.errors import OutlastError, UsageError
from outlast.run.home import home
from outlast.run.machine import (
    Machine,
    check_open,
    check_program,
    check_reach,
    machine_name,
    own_coordinator,
    reach_of,
    relocated,
)
from outlast.run.options import Options
from outlast.wire.ticket import Ticket, read_ticket


def main(argv: list[str]) -> int:
    if argv and not any(word.partition("=")[0] in ("--join", "-h", "--help") for word in argv):
        return agent_itself(argv)
    options = _parser().parse_args(argv)
    name = machine_name(options.machine)
    try:
        machine = _machine(name, read_ticket(options.join), options)
    except OutlastError as error:
        raise type(error)(f"{name}: {error}" if name not in str(error) else str(error)) from None
    ticket = machine.ticket
    return launch(
        Options(
            argv=ticket.argv,
            replicas=ticket.spec.replicas,
            base=home(),
            name=ticket.spec.name,
            store=ticket.store,
            grace_s=options.grace,
            preload=ticket.preload,
            working_directory=ticket.working_directory,
            detect_within_s=ticket.detect_within_s,
            machine=machine,
        ),
        plain=options.plain,
    )


def _machine(name: str, ticket: Ticket, options: argparse.Namespace) -> Machine:
    if options.grace < 0:
        raise UsageError(f"--grace is {options.grace}; use a number of seconds, 0 or more")
    ticket = relocated(ticket, script=options.script, directory=options.directory)
    if ticket.argv[0] == "-m":
        sys.path.insert(0, ticket.working_directory)
    check_program(name, ticket)
    reach = reach_of(ticket.coordinators, bind=options.bind, advertise=options.advertise, ports=options.ports)
    check_open(reach, insecure=ticket.insecure)
    check_reach(reach, ticket.coordinators, ticket.spec.per_machine)
    return Machine(
        name=name, ticket=ticket, reach=reach, coordinator=own_coordinator(ticket.coordinators, reach)
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="outlast agent",
        description="Take part in a job with this machine: run the replicas that it is given, and a "
        "coordinator if the job has one here. SIGTERM or Ctrl-C lets them leave in order. (`outlast agent "
        "--run DIR` is one agent by itself, as `outlast run` starts it.)",
    )
    parser.add_argument(
        "--join",
        type=Path,
        required=True,
        metavar="TICKET",
        help="the file that `outlast run --ticket` has written",
    )
    add_machine_options(parser)
    parser.add_argument("--script", metavar="PATH", help="where the script lies on this machine")
    parser.add_argument("--directory", metavar="DIR", help="where to work on this machine")
    parser.add_argument(
        "--grace", type=float, default=10.0, metavar="S", help="seconds to leave in when stopped (10)"
    )
    parser.add_argument("--plain", action="store_true", help="plain lines even in a terminal")
    return parser
