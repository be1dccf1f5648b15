"""The coordinator as a process: sockets on one side, the store on the other, the core in between.

All decisions are the core's. This shell hands it what arrives and the time, carries out what it answers, and
tells as events what was agreed on.
Peers may say only what is theirs to say: an agent speaks for itself, a replica for itself, an observer asks.
Anything else is trespass: the stream is dropped and the drop is counted.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

from outlast.coordinator.store.seam import Store
from outlast.coordinator.storekeeper import Storekeeper
from outlast.errors import StoreError
from outlast.protocol.coordinator import (
    Commit,
    CoordinatorCore,
    Disconnected,
    Event,
    Load,
    Loaded,
    LoadFailed,
    Publish,
    Received,
    Send,
    Tick,
)
from outlast.protocol.election import Campaign, Renew, Watch
from outlast.protocol.events import AnyEvent, Leading
from outlast.protocol.events import View as ViewAgreed
from outlast.protocol.messages import (
    Ask,
    Beat,
    Enlist,
    Fetch,
    Message,
    NotLeading,
    Register,
    Report,
    ViewNews,
)
from outlast.protocol.minutes import minutes
from outlast.protocol.timing import Timing
from outlast.protocol.views import JobSpec, Membership, View
from outlast.wire import descriptors
from outlast.wire.control import CONTROL
from outlast.wire.listener import Limits, Listener
from outlast.wire.streams import Stream

log = logging.getLogger(__name__)

LOADS_BEFORE_GIVING_UP = 3
"""A store that cannot be read this often has to be opened anew, which takes a new process."""


class CoordinatorService:
    """One coordinator; `run` returns when it is cancelled, and raises when it cannot go on."""

    def __init__(
        self,
        *,
        spec: JobSpec,
        timing: Timing,
        token: bytes,
        store: Store,
        address: str,
        allow_remote: bool = False,
        emit: Callable[[AnyEvent], None] = lambda _: None,
    ) -> None:
        """`address` is where others reach it, should it lead. `emit` is told what happens, and must not
        block."""
        self._spec = spec
        self._emit = emit
        self._term = 0
        self._told: Membership | None = None
        """The newest document that events were made of."""
        self._timing = timing
        self._token = token
        self._allow_remote = allow_remote
        self._store_comes_back = store.comes_back
        self._core = CoordinatorCore(spec, timing)
        self._keeper = Storekeeper(
            store, address, timing.lease_s, deliver=self._handle, on_damage=self._give_up
        )
        self._streams: dict[Stream[Message], None] = {}
        self._listener: Listener[Message] | None = None
        self._trespasses = 0
        self._trouble = ""
        self._failed_loads = 0
        self._askers: dict[Stream[Message], None] = {}
        self._broken: asyncio.Future[None] | None = None
        self._framed_view: tuple[View | None, bytes] = None, b""
        """The newest view, as it travels."""

    async def run(self, where: str | socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._broken = loop.create_future()
        self._perform(self._core.start(loop.time()))
        limits = Limits.for_fleet(self._spec.processes)
        self._make_room(limits.connections)
        self._listener = await Listener.start(
            where,
            job=self._spec.name,
            token=self._token,
            codec=CONTROL,
            on_stream=self._serve,
            allow_remote=self._allow_remote,
            limits=limits,
        )
        ticking = loop.create_task(self._tick())
        try:
            await self._broken
        finally:
            ticking.cancel()
            await asyncio.gather(ticking, return_exceptions=True)
            await self._listener.close()
            await self._keeper.close()

    def _make_room(self, connections: int) -> None:
        needed, room = 2 * self._spec.processes, descriptors.allow(connections)
        if room < needed:
            log.warning(
                "this process may have no more than %d connections, and %d replicas with their agents have "
                "%d: raise the limit of open files where it is started (ulimit -Hn)",
                room,
                self._spec.processes,
                needed,
            )

    async def _tick(self) -> None:
        while True:
            self._handle(Tick())
            await asyncio.sleep(self._timing.tick_every_s)

    async def _serve(self, stream: Stream[Message]) -> None:
        self._streams[stream] = None
        try:
            await stream.each(lambda message: self._hear(stream, message))
        finally:
            del self._streams[stream]
            self._askers.pop(stream, None)
            self._handle(Disconnected(stream))

    def _hear(self, stream: Stream[Message], message: Message) -> None:
        if not _may_say(stream.peer.role, stream.peer.name, message):
            self._trespasses += 1
            log.warning("%s said what is not theirs to say; hanging up", stream.peer.name)
            stream.close()
        elif isinstance(message, Ask):
            self._answer(stream)
        else:
            self._handle(Received(stream, message))

    def _answer(self, stream: Stream[Message]) -> None:
        assert self._listener is not None
        rejected = dict(self._listener.rejected)
        if self._trespasses:
            rejected["trespass"] = self._trespasses
        status = self._core.status(asyncio.get_running_loop().time(), rejected)
        if status is not None:
            stream.send(status)
        elif leader := self._core.election.leader:
            stream.send(NotLeading(leader=leader))
        else:
            # It is not known yet how things stand; whoever asked is told as soon as it is.
            self._askers[stream] = None

    def _handle(self, event: Event) -> None:
        if self._broken is not None and self._broken.done():
            return
        if isinstance(event, Loaded | LoadFailed):
            self._failed_loads = self._failed_loads + 1 if isinstance(event, LoadFailed) else 0
        try:
            if self._failed_loads >= LOADS_BEFORE_GIVING_UP and not self._store_comes_back:
                raise StoreError("the store can no longer be read; it has to be opened anew")
            self._perform(self._core.handle(event, asyncio.get_running_loop().time()))
        except Exception as error:
            # A core that has failed in the middle of an event is not to be trusted with the next one. The
            # agreed state is in the store; a fresh process starts from there.
            self._give_up(error)
        self._tell()
        if self._askers and self._core.leading:
            askers, self._askers = self._askers, {}
            for stream in askers:
                self._answer(stream)
        if self._core.trouble != self._trouble:
            self._trouble = self._core.trouble
            if self._trouble:
                log.error("nothing can be decided at the moment: %s", self._trouble)

    def _tell(self) -> None:
        """What has been agreed on since the last time."""
        agreed = self._core.membership
        if agreed is None or agreed is self._told:
            return
        if self._core.election.term != self._term:
            self._term = self._core.election.term
            self._emit(Leading(term=self._term, view=agreed.view.number))
            if agreed.view.number:
                # Whoever led before may have been killed before it had told of this one.
                self._emit(ViewAgreed.of(agreed.view))
        else:
            for event in minutes(self._told or Membership(spec=self._spec), agreed, self._core.causes):
                self._emit(event)
        self._told = agreed

    def _give_up(self, error: Exception) -> None:
        if self._broken is not None and not self._broken.done():
            self._broken.set_exception(error)

    def _perform(self, actions: list[Any]) -> None:
        for action in actions:
            match action:
                case Send():
                    assert isinstance(action.to, Stream)
                    self._send(action.to, action.message)
                case Publish():
                    for stream in self._streams:
                        self._send(stream, action.message)
                case Commit():
                    self._keeper.commit(action)
                case Load():
                    self._keeper.load()
                case Campaign():
                    self._keeper.campaign()
                case Renew():
                    self._keeper.renew()
                case Watch():
                    self._keeper.watch(action.after)

    def _send(self, stream: Stream[Message], message: Message) -> None:
        """A view grows with the job, and all are told of it: it is encoded once. Agents have no use for more
        than its number."""
        if not isinstance(message, ViewNews):
            stream.send(message)
            return
        if stream.peer.role == "agent":
            stream.send(ViewNews(view=View(number=message.view.number)))
            return
        view, framed = self._framed_view
        if view is not message.view:
            framed = stream.framed(message)
            self._framed_view = message.view, framed
        stream.send_framed(framed)


def _may_say(role: str, name: str, message: Message) -> bool:
    match message:
        case Beat() | Enlist():
            return role == "agent" and name == message.agent
        case Register() | Report():
            return role == "replica" and name == f"replica-{message.replica}"
        case Fetch():
            return role in ("agent", "replica", "observer")
        case Ask():
            return role in ("observer", "replica")
    return False
