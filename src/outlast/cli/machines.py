"""Options for jobs on several machines, and the ticket that is made of them."""

import argparse
import secrets
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from outlast.errors import UsageError
from outlast.protocol.views import JobSpec
from outlast.run.home import fresh_name
from outlast.run.machine import (
    COORDINATOR_PORT,
    Machine,
    check_open,
    check_reach,
    coordinator_addresses,
    machine_name,
    own_coordinator,
    reach_of,
)
from outlast.run.options import Options
from outlast.wire.address import join_address
from outlast.wire.ticket import Ticket, digest_of
from outlast.wire.token import TOKEN_BYTES


def add_machine_options(parser: argparse.ArgumentParser) -> None:
    """How this machine is known and reached."""
    parser.add_argument(
        "--machine", metavar="NAME", help="this machine's name, which no other of the job has (its host name)"
    )
    parser.add_argument(
        "--bind",
        metavar="WHERE",
        help="where to listen on this machine: an address, an interface, or a network like 10.0.0.0/8",
    )
    parser.add_argument("--advertise", metavar="HOST", help="where others reach this machine (as --bind)")
    parser.add_argument(
        "--ports", metavar="A-B", help="the ports that replicas may listen on, one for each (any)"
    )


def add_ticket_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ticket",
        type=Path,
        metavar="FILE",
        help="let other machines join: write this file, for `outlast agent --join FILE` on each of them",
    )
    parser.add_argument(
        "--per-machine", type=int, default=0, metavar="R", help="how many replicas a machine has room for"
    )
    add_machine_options(parser)
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="let messages between machines cross the network in the clear",
    )


def check_machines(options: argparse.Namespace) -> None:
    """What belongs together when there are several coordinators, or several machines."""
    if options.ticket is not None:
        if not options.store:
            raise UsageError(
                "--ticket is for several machines, and what they agree on must outlive each of them: give "
                "--store etcd://HOST:PORT,…/PREFIX (`outlast etcd` starts one)"
            )
        if options.per_machine < 1:
            raise UsageError("--ticket needs --per-machine R: how many replicas a machine has room for")
        if options.agents > 1:
            raise UsageError("--agents is for one machine; with --ticket each machine has one")
        return
    for name in ("per_machine", "machine", "bind", "advertise", "ports", "insecure"):
        if getattr(options, name):
            raise UsageError(f"--{name.replace('_', '-')} is for several machines: give --ticket FILE, too")
    several = options.coordinators or "1"
    if not several.isdecimal() or int(several) < 1:
        raise UsageError(f"--coordinators is {several}; use a number of at least 1, or give --ticket, too")
    if int(several) > 1 and not options.store:
        raise UsageError(
            f"--coordinators is {several}, but several of them need a store that they share: "
            "--store etcd://HOST:PORT/PREFIX"
        )


def _first_endpoint(store: str) -> str:
    """The first endpoint of the store, which this machine has to reach in any case."""
    return store.removeprefix("etcd://").partition("/")[0].partition(",")[0]


def with_ticket(prepared: Options, options: argparse.Namespace, source: Path | None) -> Options:
    """The same; if others are to join, as this machine's part in it, with a ticket for the others."""
    if options.ticket is None:
        return prepared
    name = machine_name(options.machine)
    coordinators = coordinator_addresses(options.coordinators) if options.coordinators else ()
    reach = reach_of(
        coordinators or (_first_endpoint(prepared.store),),
        bind=options.bind,
        advertise=options.advertise,
        ports=options.ports,
    )
    check_open(reach, insecure=options.insecure)
    check_reach(reach, coordinators, options.per_machine)
    coordinators = coordinators or (join_address(reach.known_as, COORDINATOR_PORT),)
    own = own_coordinator(coordinators, reach)
    run = prepared.name or fresh_name(prepared.argv[1 if prepared.argv[0] == "-m" else 0])
    spec = JobSpec(
        name=run,
        replicas=prepared.replicas,
        shards=prepared.shards or prepared.replicas,
        min_replicas=prepared.min_replicas,
        shadows=prepared.shadows,
        per_machine=options.per_machine,
    )
    spec.validate()
    ticket = Ticket(
        outlast=version("outlast"),
        spec=spec,
        token=secrets.token_hex(TOKEN_BYTES),
        store=f"{prepared.store}/{run}-{secrets.token_hex(4)}",
        coordinators=coordinators,
        insecure=options.insecure,
        argv=prepared.argv,
        digest=digest_of(source),
        working_directory=prepared.working_directory,
        preload=prepared.preload,
        threads=prepared.threads,
        detect_within_s=prepared.detect_within_s,
    )
    machine = Machine(name=name, ticket=ticket, reach=reach, coordinator=own)
    return replace(prepared, name=run, machine=machine, store=ticket.store, ticket=options.ticket)
