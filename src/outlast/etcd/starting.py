"""`outlast etcd start`: one member, from nothing or from its data, until it is told to end.

What is typed counts only once. A member that has data goes on from it, with the same command, another one or
no more than its name; only what contradicts the data is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import msgspec

from outlast.coordinator.store.gateway import Endpoint
from outlast.errors import ConfigError, OutlastError, StoreError, UsageError
from outlast.etcd.cluster import Cluster, Member, Picture, endpoint_of, spell_store
from outlast.etcd.command import ELECTION_MS, EXISTING, NEW, Launch
from outlast.etcd.folder import Folder, Page, belongs
from outlast.etcd.joining import join, promote
from outlast.etcd.metrics import read_page
from outlast.etcd.places import Place, check_ports, listening_ip, reaches_beyond, spelled
from outlast.etcd.process import Life
from outlast.etcd.telling import Account
from outlast.etcd.verdicts import hindrance, verdict
from outlast.kinship import ExitStatus

LOOK_EVERY_S = 0.3
LOOK_EVERY_WHEN_WELL_S = 2.0
KILLS_MOST = 10
KILLS_WITHIN_S = 60.0

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What was typed."""

    name: str
    folder: Path
    at: Place | None = None
    members: Mapping[str, Place] = field(default_factory=dict)
    join: Sequence[Endpoint] = ()
    replace: bool = False
    bind: str | None = None
    insecure: bool = False
    election_ms: int = ELECTION_MS


def place_of(wish: Wish, page: Page | None) -> Place:
    """Where others reach it, from what was typed or from what was said the last time."""
    if wish.members and wish.name not in wish.members:
        raise UsageError(
            f"--members does not name {wish.name}, which is to be started: {spelled(wish.members)}"
        )
    listed = wish.members.get(wish.name)
    if wish.at is not None and listed is not None and wish.at != listed:
        raise UsageError(f"--at says {wish.at}, and --members says {listed}: leave --at out")
    place = wish.at or listed or (page.place if page is not None else None)
    if place is None:
        raise UsageError(
            f"where is {wish.name} to be? Say --at HOST, or --members with all members of a new cluster"
        )
    return place


@final
class Starter:
    def __init__(self, wish: Wish, program: Path, *, say: Say, show: Say) -> None:
        """`say` tells people what goes on; `show` is given the store's address whenever it is a new one."""
        self._wish = wish
        self._program = program
        self._say = say
        self._show = show
        self._life: Life | None = None
        self._shown = ""

    async def run(self) -> int:
        """Until a signal ends it; raises when the member cannot live."""
        loop = asyncio.get_running_loop()
        stopped: asyncio.Future[int] = loop.create_future()

        def stop(number: int) -> None:
            if not stopped.done():
                stopped.set_result(number)
            elif self._life is not None:
                self._life.kill()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, stop, number)
        working = asyncio.ensure_future(self._work())
        await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not stopped.done():
            return await working
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError, OutlastError):
            await working
        self._say(f"{self._wish.name} has ended; start it again the same way, and it goes on from its data")
        return 128 + stopped.result()

    async def _work(self) -> int:
        with Folder(self._wish.folder) as folder:
            launch = await self._prepare(folder)
            kills: deque[float] = deque(maxlen=KILLS_MOST)
            loop = asyncio.get_running_loop()
            while True:
                status = await self._live(launch, folder)
                kills.append(loop.time())
                often = len(kills) == KILLS_MOST and loop.time() - kills[0] < KILLS_WITHIN_S
                if status >= 0 or ExitStatus.of(status).own_fault or often:
                    raise self._verdict(folder, status)
                self._say(f"{launch.name} {ExitStatus.of(status).describe()}, and is started again")

    async def _prepare(self, folder: Folder) -> Launch:
        """All that can be wrong is found before the cluster is asked to change."""
        wish, page = self._wish, folder.page()
        place = place_of(wish, page)
        if folder.has_data():
            belongs(page, name=wish.name, place=place, members=wish.members, folder=folder.path)
            assert page is not None
            ip = self._listen(place, [endpoint_of(url).host for url in page.peers.values()])
            await self._check_cluster(page)
            self._say(f"{wish.name} goes on from its data in {folder.path}")
            return self._launch(folder, place, ip, {wish.name: place.peer_url}, NEW, "")
        if page is not None and page.cluster and not wish.join:
            known = ",".join(one for one in page.clients if one != str(place.client)) or "ENDPOINTS"
            raise ConfigError(
                f"member {page.name} has run in {folder.path} before, and its data is gone. If the others "
                f"live, replace it: outlast etcd start --name {wish.name} --at {place} --join {known} "
                f"--replace. To begin a new, empty cluster, remove {folder.path}"
            )
        hosts = [other.host for other in wish.members.values()] + [endpoint.host for endpoint in wish.join]
        ip = self._listen(place, hosts)
        if wish.join:
            async with Cluster(wish.join) as cluster:
                peers = await join(cluster, name=wish.name, place=place, replace=wish.replace, say=self._say)
                number = (await cluster.picture()).statuses
            known_as = next((status.cluster for status in number.values()), "")
            clients = (*map(str, wish.join), str(place.client))
            page = Page(name=wish.name, at=str(place), clients=clients, peers=peers, cluster=known_as)
            folder.write(page)
            return self._launch(folder, place, ip, peers, EXISTING, "")
        members = wish.members or {wish.name: place}
        peers = {name: other.peer_url for name, other in members.items()}
        clients = tuple(str(other.client) for other in members.values())
        folder.write(
            Page(name=wish.name, at=str(place), members=spelled(wish.members), clients=clients, peers=peers)
        )
        # Others have to come to the same by themselves; one that is alone begins a cluster like no other.
        agreed = hashlib.blake2b(spelled(members).encode(), digest_size=8).hexdigest()
        token = agreed if len(members) > 1 else secrets.token_hex(8)
        return self._launch(folder, place, ip, peers, NEW, f"outlast-{token}")

    def _listen(self, place: Place, hosts: Sequence[str]) -> str:
        wish = self._wish
        alone = not any(map(reaches_beyond, hosts))
        ip = listening_ip(place, bind=wish.bind, insecure=wish.insecure, alone=alone)
        check_ports(ip, place)
        if reaches_beyond(ip):
            self._say(
                f"INSECURE: whoever reaches {place.client} or port {place.peer_port} there may read and "
                "change everything that jobs agree on. Let nobody onto that network whom you do not trust"
            )
        return ip

    def _launch(
        self, folder: Folder, place: Place, ip: str, peers: Mapping[str, str], state: str, token: str
    ) -> Launch:
        return Launch(
            name=self._wish.name,
            place=place,
            ip=ip,
            data=folder.data,
            election_ms=self._wish.election_ms,
            cluster=peers,
            state=state,
            token=token,
        )

    async def _check_cluster(self, page: Page) -> None:
        """Whether what is to be joined is what the data is of, as far as anybody can say."""
        async with Cluster(self._wish.join) as cluster:
            for endpoint in self._wish.join:
                with contextlib.suppress(StoreError):
                    found = (await cluster.status(endpoint)).cluster
                    if page.cluster and found != page.cluster:
                        raise ConfigError(
                            f"{self._wish.folder} holds the data of member {page.name} of another cluster "
                            f"than that of {endpoint}: give another --data, or remove it if nobody needs it"
                        )

    async def _live(self, launch: Launch, folder: Folder) -> int:
        """One life, and its status."""
        life = self._life = await Life.begin(launch.command(self._program), folder, os.environ)
        attending = asyncio.ensure_future(self._attend(launch, folder, life))
        ending = asyncio.ensure_future(life.ended())
        try:
            await asyncio.wait({attending, ending}, return_when=asyncio.FIRST_COMPLETED)
            if attending.done():
                # It never ends but by an error, which is not the member's.
                attending.result()
            return await ending
        finally:
            attending.cancel()
            ending.cancel()
            await asyncio.gather(attending, ending, return_exceptions=True)
            await life.end()

    async def _attend(self, launch: Launch, folder: Folder, life: Life) -> None:
        """Look at the cluster for as long as the member lives, and tell what changes."""
        account = Account()
        page = folder.page()
        assert page is not None
        known = [launch.place.client, *(endpoint_of(f"http://{one}") for one in page.clients)]
        async with Cluster(known) as cluster:
            while True:
                try:
                    await cluster.status(launch.place.client)
                    picture = await cluster.picture()
                except StoreError:
                    why = hindrance(folder.words_since(life.words_from))
                    up = {launch.name} | await _reachable(page.peers)
                    self._tell(account.wait(up, _places(page), why))
                else:
                    self._tell(account.look(picture))
                    page = self._remember(folder, page, picture, healthy=account.healthy)
                    own = _own(picture, launch)
                    if own is not None and own.learner and await promote(cluster, picture, own):
                        self._say(f"{launch.name} has caught up, and votes from now on")
                    cluster.endpoints[1:] = [one for one in picture.endpoints if one != launch.place.client]
                folder.trim_log()
                await asyncio.sleep(LOOK_EVERY_WHEN_WELL_S if account.healthy else LOOK_EVERY_S)

    def _tell(self, sentences: Sequence[str]) -> None:
        for sentence in sentences:
            self._say(sentence)

    def _remember(self, folder: Folder, page: Page, picture: Picture, *, healthy: bool) -> Page:
        """Who the members are now, for the next life of this one; and for people, where they are."""
        if not healthy:
            return page
        store = spell_store(sorted(self._endpoints(picture), key=str))
        if store != self._shown:
            self._shown = store
            self._show(store)
        cluster = next(iter(picture.statuses.values())).cluster
        clients = tuple(map(str, picture.endpoints))
        peers = {member.name: member.peer_urls[0] for member in picture.members if member.name}
        fresh = msgspec.structs.replace(page, cluster=cluster, clients=clients, peers=peers)
        if fresh != page:
            # A full disk is said elsewhere; the member itself needs none of it.
            with contextlib.suppress(OutlastError):
                folder.write(fresh)
        return fresh

    def _endpoints(self, picture: Picture) -> list[Endpoint]:
        """Also of those that have not come up yet, where that was typed."""
        typed = {place.peer_url: place.client for place in self._wish.members.values()}
        found = [
            member.clients[0] if member.clients else typed.get("".join(member.peer_urls[:1]))
            for member in picture.members
        ]
        return [endpoint for endpoint in found if endpoint is not None]

    def _verdict(self, folder: Folder, status: int) -> OutlastError:
        assert self._life is not None
        page = folder.page()
        own = page.place.client if page is not None else None
        clients = [endpoint_of(f"http://{one}") for one in (page.clients if page is not None else ())]
        return verdict(
            folder.words_since(self._life.words_from),
            name=self._wish.name,
            folder=folder.path,
            contacts=[one for one in clients if one != own],
            status=ExitStatus.of(status).describe(),
        )


def _own(picture: Picture, launch: Launch) -> Member | None:
    return next((one for one in picture.members if launch.place.peer_url in one.peer_urls), None)


def _places(page: Page) -> dict[str, str]:
    return {name: str(endpoint_of(url)) for name, url in page.peers.items()}


async def _reachable(peers: Mapping[str, str]) -> set[str]:
    """Who says its version where other members look for it. Members do that before they can serve."""
    names = list(peers)
    found = await asyncio.gather(*(read_page(endpoint_of(peers[name]), "/version") for name in names))
    return {name for name, page in zip(names, found, strict=True) if page is not None and "etcd" in page}
