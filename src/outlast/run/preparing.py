"""What is settled and written down before anything of a run starts."""

import errno
import hashlib
import os
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path

from outlast.errors import ConfigError, StoreError, StoreFull, UsageError
from outlast.protocol.views import JobSpec
from outlast.run.home import alive, started_at
from outlast.run.machine import Machine
from outlast.run.options import Options
from outlast.wire.address import format_address
from outlast.wire.rundir import RunDirectory, RunFile
from outlast.wire.ticket import Ticket

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def spec_of(options: Options, name: str) -> JobSpec:
    if options.machine is not None:
        return options.machine.ticket.spec
    return JobSpec(
        name=name,
        replicas=options.replicas,
        shards=options.shards or options.replicas,
        min_replicas=options.min_replicas,
        shadows=options.shadows,
    )


def listening(options: Options) -> dict[int, str]:
    """Where the coordinators that run here listen, each with its number."""
    if options.machine is not None:
        own = options.machine.coordinator
        return {} if own is None else {own: options.machine.listens_on()}
    # Several cannot have one port: only the first has the one that was asked for.
    host = options.address.rpartition(":")[0]
    return dict(enumerate([options.address, *[f"{host}:0"] * (options.coordinators - 1)]))


def prepare(options: Options, spec: JobSpec, sockets: Sequence[socket.socket]) -> RunDirectory:
    """The run's directory on this machine, with all that its processes need to take part."""
    if options.machine is not None:
        return _join(options.machine, options.base)
    return _begin(options, spec, sockets)


def _join(machine: Machine, base: Path) -> RunDirectory:
    """A directory of this machine's own, or the one that it had when it took part before."""
    ticket = machine.ticket
    run = RunFile(
        spec=ticket.spec,
        addresses=ticket.coordinators,
        store=ticket.store,
        argv=ticket.argv,
        working_directory=ticket.working_directory,
        preload=ticket.preload,
        threads=ticket.threads,
        detect_within_s=ticket.detect_within_s,
        reach=machine.reach,
        insecure=ticket.insecure,
        launcher_pid=os.getpid(),
        launcher_started=started_at(os.getpid()),
    )
    run.timing()  # Refuses what cannot work before anything is written.
    directory = _place_of(ticket, base)
    if (directory.path / "run.json").exists():
        directory.renew(run)
    else:
        _create(directory, run, ticket.secret)
    return directory


def refuse_twice(machine: Machine, base: Path) -> None:
    """A machine takes part once: two launchers would take each other's ports and processes."""
    directory = _place_of(machine.ticket, base)
    if (directory.path / "run.json").exists() and alive(before := directory.read()):
        raise UsageError(
            f"{machine.name} takes part in {machine.ticket.spec.name} already (process {before.launcher_pid})"
        )


def _place_of(ticket: Ticket, base: Path) -> RunDirectory:
    """By the job's name, if no other job of that name has been here."""
    directory = RunDirectory(base / "runs" / ticket.spec.name)
    if not (directory.path / "run.json").exists() or directory.token() == ticket.secret:
        return directory
    mark = hashlib.sha256(ticket.secret).hexdigest()[:6]
    return RunDirectory(directory.path.with_name(f"{directory.name}-{mark}"))


def _begin(options: Options, spec: JobSpec, sockets: Sequence[socket.socket]) -> RunDirectory:
    run = RunFile(
        spec=spec,
        addresses=tuple(format_address(sock.getsockname()) for sock in sockets),
        # A run of the same name may have been there before.
        store=f"{options.store}/{spec.name}-{secrets.token_hex(4)}" if options.store else "",
        argv=options.argv,
        working_directory=options.working_directory,
        preload=options.preload,
        threads=options.threads,
        detect_within_s=options.detect_within_s,
        launcher_pid=os.getpid(),
        launcher_started=started_at(os.getpid()),
    )
    run.timing()  # Refuses what cannot work before anything is written.
    directory = RunDirectory(options.base / "runs" / spec.name)
    _create(directory, run)
    return directory


def _create(directory: RunDirectory, run: RunFile, token: bytes | None = None) -> None:
    try:
        directory.create(run, token)
    except FileExistsError:
        raise UsageError(
            f"there is a run {run.spec.name!r} already, in {directory.path}: choose another --name"
        ) from None
    except (OSError, ConfigError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError):
            raise
        full = cause.errno in _NO_SPACE
        advice = "free some space" if full else "set OUTLAST_HOME to a directory that can be"
        raise (StoreFull if full else StoreError)(
            f"the run directory {directory.path} cannot be written ({cause.strerror}): {advice}"
        ) from None
