"""A cluster asked about itself, member by member.

A call through `Gateway` goes to whoever answers; here it matters who does. So each member that is asked has a
gateway of its own, and one that does not answer at once is not waited for.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from outlast.coordinator.store.gateway import JSON, Endpoint, Gateway
from outlast.errors import StoreError

NOSPACE, CORRUPT = "NOSPACE", "CORRUPT"


@dataclass(frozen=True, kw_only=True)
class Member:
    """As the cluster lists it."""

    id: str
    name: str
    """Empty until it was started for the first time."""
    peer_urls: tuple[str, ...]
    clients: tuple[Endpoint, ...]
    learner: bool = False
    """It has no vote yet, and is not counted."""

    @property
    def title(self) -> str:
        return self.name or f"the one at {', '.join(self.peer_urls)} that was never started"


@dataclass(frozen=True, kw_only=True)
class Status:
    """What one member says of itself."""

    member: str
    cluster: str
    version: str
    leader: str
    """The member's number that leads, as this one knows; 0 if it knows none."""
    db_bytes: int
    used_bytes: int
    learner: bool
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Picture:
    """How a cluster looks at one moment."""

    members: tuple[Member, ...] = ()
    statuses: dict[str, Status] = field(default_factory=dict)
    """By the members' numbers, of those that answer."""
    silent: dict[str, str] = field(default_factory=dict)
    """Why the others do not."""

    @property
    def voters(self) -> tuple[Member, ...]:
        return tuple(member for member in self.members if not member.learner)

    @property
    def answering(self) -> tuple[Member, ...]:
        return tuple(member for member in self.voters if member.id in self.statuses)

    @property
    def majority(self) -> bool:
        return len(self.answering) > len(self.voters) // 2

    @property
    def leader(self) -> Member | None:
        """Whom most of those that answer follow, if there is one."""
        said = [self.statuses[member.id].leader for member in self.answering]
        for member in self.members:
            if 2 * said.count(member.id) > len(self.voters):
                return member
        return None

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Of all that were ever started."""
        return tuple(member.clients[0] for member in self.members if member.clients)


class Cluster:
    """Some endpoints of one cluster, and those that are found through them."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self.endpoints = list(dict.fromkeys(endpoints))
        self._gateways: dict[Endpoint, Gateway] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        gateways, self._gateways = list(self._gateways.values()), {}
        for gateway in gateways:
            await gateway.close()

    async def status(self, endpoint: Endpoint) -> Status:
        """Of this very member; raises `StoreError` if it does not answer at once."""
        answer = await self.ask(endpoint, "/v3/maintenance/status", {})
        header = answer.get("header", {})
        return Status(
            member=str(header.get("member_id", "0")),
            cluster=str(header.get("cluster_id", "")),
            version=str(answer.get("version", "")),
            leader=str(answer.get("leader", "0")),
            db_bytes=int(answer.get("dbSize", 0)),
            used_bytes=int(answer.get("dbSizeInUse") or answer.get("dbSize") or 0),
            learner=bool(answer.get("isLearner")),
            errors=tuple(map(str, answer.get("errors", ()))),
        )

    async def members(self) -> tuple[Member, ...]:
        """As any of the endpoints lists them. Raises `StoreError` if none does."""
        why: StoreError | None = None
        for endpoint in self.endpoints:
            try:
                answer = await self.ask(endpoint, "/v3/cluster/member/list", {})
            except StoreError as error:
                why = error
                continue
            listed = [_member(one) for one in answer.get("members", ())]
            return tuple(sorted(listed, key=lambda member: (member.name == "", member.name)))
        raise why or StoreError("no endpoint is known")

    async def picture(self) -> Picture:
        """Who there is, and who answers."""
        members = await self.members()
        statuses: dict[str, Status] = {}
        silent: dict[str, str] = {}

        async def look(member: Member) -> None:
            silent[member.id] = "it was never started" if not member.clients else ""
            for endpoint in member.clients:
                try:
                    status = await self.status(endpoint)
                except StoreError as error:
                    silent[member.id] = short(error)
                    continue
                if status.member == member.id:
                    statuses[member.id] = status
                    silent.pop(member.id)
                    return
                silent[member.id] = f"another member answers at {endpoint}"

        await asyncio.gather(*map(look, members))
        return Picture(members=members, statuses=statuses, silent=silent)

    async def ask(
        self, endpoint: Endpoint, path: str, body: JSON, *, once: bool = False, within_s: float | None = None
    ) -> JSON:
        gateway = self._gateways.setdefault(endpoint, Gateway([endpoint]))
        return await gateway.call(path, body, once=once, everywhere=False, within_s=within_s)

    async def ask_any(self, path: str, body: JSON, *, once: bool = False) -> JSON:
        """Whoever answers. What may be said twice is said again elsewhere."""
        why: StoreError | None = None
        for endpoint in self.endpoints:
            try:
                return await self.ask(endpoint, path, body, once=once)
            except StoreError as error:
                if once:
                    raise
                why = error
        raise why or StoreError("no endpoint is known")

    async def alarms(self) -> list[tuple[str, str]]:
        """Members' numbers, and what they raise alarm about."""
        answer = await self.ask_any("/v3/maintenance/alarm", {"action": "GET"})
        return [
            (str(one.get("memberID", "0")), str(one.get("alarm", ""))) for one in answer.get("alarms", ())
        ]


def endpoint_of(url: str) -> Endpoint:
    parts = urlsplit(url)
    return Endpoint(parts.hostname or "", parts.port or 0)


def short(error: Exception) -> str:
    """Without the address that whoever says it has named already."""
    why = str(error).rpartition("does not answer: ")[2]
    refused = re.fullmatch(r"\S+ cannot be reached \((.*)\)", why)
    return refused[1] if refused else re.sub(r"^\S+:\d+: ", "", why)


def spell_store(endpoints: Sequence[Endpoint], prefix: str = "outlast") -> str:
    return f"etcd://{','.join(map(str, endpoints))}/{prefix}"


def _member(one: JSON) -> Member:
    return Member(
        id=str(one["ID"]),
        name=str(one.get("name", "")),
        peer_urls=tuple(map(str, one.get("peerURLs", ()))),
        clients=tuple(endpoint_of(str(url)) for url in one.get("clientURLs", ())),
        learner=bool(one.get("isLearner")),
    )
