"""The coordinator as a service, in this process: real sockets, a real store, and a replica's real link."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self, TypeVar

import pytest

from outlast.coordinator.service import CoordinatorService, _may_say
from outlast.coordinator.store.embedded import EmbeddedStore
from outlast.protocol.messages import (
    Ask,
    Beat,
    BeatAck,
    Check,
    Departure,
    Fetch,
    Message,
    NotLeading,
    Pulse,
    Register,
    Report,
    Status,
    ViewNews,
)
from outlast.protocol.views import JobSpec, View, process_number
from outlast.train.link import Link
from outlast.wire.address import format_address, listen
from outlast.wire.blocking import BlockingStream
from outlast.wire.control import CONTROL
from outlast.wire.handover import Handover
from outlast.wire.progress import Progress
from outlast.wire.rundir import RunDirectory, RunFile
from outlast.wire.streams import Stream
from patience import PATIENCE_S

M = TypeVar("M", bound=Message)


class Coordinator:
    """A coordinator in a thread; leaving the block stops it without a farewell, as a kill would."""

    def __init__(self, directory: RunDirectory, sock: socket.socket) -> None:
        self._directory = directory
        self._sock = sock
        self._loop = asyncio.new_event_loop()
        self._serving: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(lambda: self._serving and self._serving.cancel())
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        self._serving = self._loop.create_task(self._serve())
        self._loop.run_until_complete(asyncio.wait([self._serving]))

    async def _serve(self) -> None:
        run = self._directory.read()
        store = await EmbeddedStore.open(self._directory.store)
        service = CoordinatorService(
            spec=run.spec,
            timing=run.timing(),
            token=self._directory.token(),
            store=store,
            address=run.addresses[0],
        )
        try:
            await service.run(self._sock.dup())
        finally:
            await store.close()


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    with listen("127.0.0.1:0") as sock:
        yield sock


@pytest.fixture
def directory(tmp_path: Path, sock: socket.socket) -> RunDirectory:
    directory = RunDirectory(tmp_path / "job")
    directory.create(
        RunFile(
            spec=JobSpec(name="job", replicas=1, shards=1),
            addresses=(format_address(sock.getsockname()),),
            argv=("train.py",),
            working_directory="/",
        )
    )
    return directory


def link(directory: RunDirectory, views: list[View], serial: int = 1) -> Link:
    page = directory.path / "page"
    Progress.create(page).close()
    process = process_number(1, serial)
    hand = Handover(run=directory.path, replica=0, process=process, agent="agent-0", page=page)
    return Link(hand, on_view=views.append)


def dial(directory: RunDirectory, role: str, name: str) -> BlockingStream[Message]:
    run = directory.read()
    return BlockingStream.connect(
        run.addresses[0],
        job="job",
        token=directory.token(),
        role=role,
        name=name,
        codec=CONTROL,
        deadline_s=PATIENCE_S,
    )


def test_a_link_outlives_its_coordinators(directory: RunDirectory, sock: socket.socket) -> None:
    views: list[View] = []
    mine = link(directory, views)
    # Nobody answers yet; that is no reason to fail.
    mine.open()
    with Coordinator(directory, sock):
        assert mine.wait(lambda: mine.is_member, PATIENCE_S)
        assert mine.incarnation == 1
    with Coordinator(directory, sock):
        with dial(directory, "observer", "test") as watching:
            news: Message | None = NotLeading()
            while isinstance(news, NotLeading):
                # It is there, and does not know yet how things stand.
                watching.send(Fetch())
                news = watching.receive(PATIENCE_S)
        assert news == ViewNews(view=mine.view)
        assert (mine.fenced, mine.outcome) == (None, None)
        assert mine.is_member
        mine.leave()
        assert mine.wait(lambda: False, PATIENCE_S), "told that it is out of the view"
        assert mine.fenced is not None
    mine.close()
    assert [view.number for view in views] == [1], "the same view is adopted once"


def test_a_fenced_life_is_followed_by_another(directory: RunDirectory, sock: socket.socket) -> None:
    views: list[View] = []
    mine = link(directory, views)
    with Coordinator(directory, sock), dial(directory, "agent", "agent-0") as agent:
        mine.open()
        assert mine.wait(lambda: mine.is_member, PATIENCE_S)
        # The agent says that this process is dead, which makes it so, whatever the process itself believes.
        dead = Departure(replica=0, process=process_number(1, 1), how="was killed by SIGKILL")
        agent.send(Beat(agent="agent-0", boot=1, number=1, departures=(dead,)))
        assert mine.wait(lambda: False, PATIENCE_S)
        assert mine.fenced is not None
        assert not mine.is_member
        mine.close()

        heir = link(directory, views, serial=2)
        heir.open()
        pulse = Pulse(replica=0, process=process_number(1, 2))
        agent.send(Beat(agent="agent-0", boot=1, number=2, pulses=(pulse,)))
        assert heir.wait(lambda: heir.is_member, PATIENCE_S)
        assert heir.incarnation == 2
        assert heir.view.lineage == 2, "nobody was left who held the state"
        heir.close()


def test_a_lost_replica_makes_its_agent_look_at_once(directory: RunDirectory, sock: socket.socket) -> None:
    mine = link(directory, [])
    with Coordinator(directory, sock), dial(directory, "agent", "agent-0") as agent:
        mine.open()
        assert mine.wait(lambda: mine.is_member, PATIENCE_S)
        pulse = Pulse(replica=0, process=process_number(1, 1))
        agent.send(Beat(agent="agent-0", boot=1, number=1, pulses=(pulse,)))
        while not isinstance(message := agent.receive(PATIENCE_S), BeatAck):
            assert message is not None, "the beat is not heard"
        mine.close()
        while not isinstance(message := agent.receive(PATIENCE_S), Check):
            assert message is not None, "the agent is not asked"


def test_a_view_is_encoded_once_for_all(
    directory: RunDirectory, sock: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[Message] = []
    framed = Stream.framed
    monkeypatch.setattr(
        Stream, "framed", lambda self, message: (encoded.append(message), framed(self, message))[1]
    )
    mine = link(directory, [])
    with Coordinator(directory, sock), contextlib.ExitStack() as stack:
        observers = [stack.enter_context(dial(directory, "observer", f"o{each}")) for each in range(5)]
        for observer in observers:
            hear(observer, Status)
        mine.open()
        for observer in observers:
            assert hear(observer, ViewNews).view.number == 1
        assert mine.wait(lambda: mine.is_member, PATIENCE_S)
        mine.close()
    assert [one.view.number for one in encoded if isinstance(one, ViewNews)].count(1) == 1


def test_an_agent_is_told_the_number_of_a_view(directory: RunDirectory, sock: socket.socket) -> None:
    mine = link(directory, [])
    with Coordinator(directory, sock), dial(directory, "agent", "agent-0") as agent:
        mine.open()
        assert mine.wait(lambda: mine.is_member, PATIENCE_S)
        agent.send(Fetch())
        while not isinstance(news := agent.receive(PATIENCE_S), ViewNews) or not news.view.number:
            assert news is not None, "the agent is told nothing"
        assert news == ViewNews(view=View(number=1))
        mine.close()


def hear(observer: BlockingStream[Message], kind: type[M]) -> M:
    """Asks until it hears that."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        observer.send(Ask())
        message = observer.receive(0.1)
        if isinstance(message, kind):
            return message
    raise AssertionError(f"no {kind.__name__} came")


@pytest.mark.parametrize(
    ("message", "who"),
    [
        (Beat(agent="agent-0", boot=1, number=1), {("agent", "agent-0")}),
        (Register(replica=0, process=1, rejoin=0, agent="agent-0"), {("replica", "replica-0")}),
        (Report(replica=0, incarnation=1, view=1), {("replica", "replica-0")}),
        (
            Fetch(),
            {("agent", "agent-0"), ("replica", "replica-0"), ("replica", "replica-1"), ("observer", "x")},
        ),
        (Ask(), {("observer", "x"), ("replica", "replica-0"), ("replica", "replica-1")}),
        (ViewNews(view=View()), set()),
    ],
)
def test_everybody_speaks_for_themselves(message: Message, who: set[tuple[str, str]]) -> None:
    peers = [
        ("agent", "agent-0"),
        ("replica", "replica-0"),
        ("replica", "replica-1"),
        ("observer", "x"),
        ("stranger", "agent-0"),
    ]
    assert {peer for peer in peers if _may_say(*peer, message)} == who
