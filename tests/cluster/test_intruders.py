"""Whoever does not belong to the job, or says what is not theirs to say, is turned away and counted."""

import asyncio
import contextlib
import socket
from typing import Any

from outlast.errors import PeerRejected
from outlast.protocol.messages import Beat, Message, Register, Report, Status
from outlast.wire.address import parse_address
from outlast.wire.control import CONTROL
from outlast.wire.framing import MAX_FRAME_BYTES
from outlast.wire.streams import connect
from patience import PATIENCE_S

Job = Any

GARBAGE = [
    b"",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\x00\x00\x00\x05hello",
    b"\xff" * 4096,
    b"\x00\x00\x00\x00" * 64,
    (MAX_FRAME_BYTES - 1).to_bytes(4, "big"),
]


def knock(address: str, data: bytes) -> None:
    """Connect, say something, and listen until the other side hangs up."""
    sock = socket.create_connection(parse_address(address), timeout=PATIENCE_S)
    with sock, contextlib.suppress(OSError):
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(4096):
            pass


async def trespass(job: Job, role: str, name: str, message: Message) -> None:
    """An authenticated peer says this, and waits to be hung up on."""
    run = job.directory.read()
    stream = await connect(
        run.addresses[0],
        job=run.spec.name,
        token=job.directory.token(),
        role=role,
        name=name,
        codec=CONTROL,
        deadline_s=30,
    )
    async with asyncio.timeout(PATIENCE_S), stream:
        stream.send(message)
        async for _ in stream:
            pass


async def with_another_token(job: Job) -> None:
    run = job.directory.read()
    await connect(
        run.addresses[0],
        job=run.spec.name,
        token=bytes(32),
        role="agent",
        name="agent-0",
        codec=CONTROL,
        deadline_s=30,
    )


def test_they_are_turned_away_and_the_job_does_not_notice(start_job: Job) -> None:
    with start_job(2) as job:
        before = job.wait_for_all()
        pids = job.replica_pids()
        assert before.rejected == {}
        address = job.directory.read().addresses[0]
        for data in GARBAGE:
            knock(address, data)
        with contextlib.suppress(PeerRejected):
            asyncio.run(with_another_token(job))

        lie = Beat(agent="agent-0", boot=99, number=1)
        ghost = Register(replica=1, process=1 << 30, rejoin=0, agent="agent-0")
        slander = Report(replica=1, incarnation=1, view=1, leaving=True)
        for role, name, message in (
            ("agent", "agent-1", lie),
            ("replica", "replica-0", lie),
            ("observer", "spy", slander),
            ("replica", "replica-0", slander),
            ("agent", "agent-0", ghost),
            ("replica", "replica-0", Status(job="job", view=before.view, seats=())),
        ):
            asyncio.run(trespass(job, role, name, message))

        status = job.wait_for("all are counted", lambda status: sum(status.rejected.values()) == 13)
        assert status.rejected["trespass"] == 6
        assert status.rejected["credentials"] == 1
        assert status.rejected["oversize"] >= 1
        assert status.rejected["malformed"] >= 1
        job.wait_for_steps(0, 1)
        assert job.status().view == before.view
        assert job.replica_pids() == pids
        assert job.finish() == 0


def test_a_crowd_at_the_door_keeps_nobody_out(start_job: Job) -> None:
    """More strangers than there are places, all silent: a replica that comes back still gets through."""
    with start_job(2) as job, contextlib.ExitStack() as crowd:
        job.wait_for_all()
        address = parse_address(job.directory.read().addresses[0])
        for _ in range(200):
            crowd.enter_context(socket.create_connection(address, timeout=PATIENCE_S))
        job.kill(1)
        job.wait_for_life(1, 2)
        assert job.status().rejected["crowded"] >= 1
        assert job.finish() == 0
