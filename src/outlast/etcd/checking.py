"""`outlast etcd check`: whether a cluster can be used, what is wrong with it, and what to do about that.

`examine` asks; what it found is judged without any I/O (`judge`), so that every finding has a test.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import statistics
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from outlast.coordinator.store.etcd import judge_version
from outlast.coordinator.store.gateway import Endpoint
from outlast.errors import StoreError
from outlast.etcd.cluster import CORRUPT, NOSPACE, Cluster, Picture, short, spell_store
from outlast.etcd.metrics import Metrics, read_metrics

WRITES = 10
WRITE_WITHIN_S = 4.0
LEASE_S = 30
SLOW_WRITE_S = 0.1
SLOW_FSYNC_S = 0.128
"""Members that wait this long for their disks now and then come near the time after which they elect another
leader. The bound is one of those that etcd counts by."""
FULL_SHARE = 0.8
UNNEEDED_SHARE = 0.5
UNNEEDED_BYTES = 256 << 20

Severity = Literal["bad", "warning"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    severity: Severity
    """`bad`: it cannot be used like this."""
    text: str
    do: str = ""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All that was asked."""

    named: Mapping[Endpoint, str]
    """The given endpoints, and the numbers of the members that answered there; empty if none did."""
    unreachable: Mapping[Endpoint, str] = field(default_factory=dict)
    """Why nobody answered there."""
    strangers: Sequence[Endpoint] = ()
    """Given endpoints of another cluster."""
    picture: Picture = field(default_factory=Picture)
    alarms: Sequence[tuple[str, str]] = ()
    metrics: Mapping[str, Metrics] = field(default_factory=dict)
    writes_s: Sequence[float] = ()
    write_error: str = ""


async def examine(endpoints: Sequence[Endpoint]) -> Facts:
    named: dict[Endpoint, str] = {}
    unreachable: dict[Endpoint, str] = {}
    strangers: list[Endpoint] = []
    number = ""
    async with Cluster(endpoints) as cluster:
        for endpoint in endpoints:
            named[endpoint] = ""
            try:
                status = await cluster.status(endpoint)
            except StoreError as error:
                unreachable[endpoint] = short(error)
                continue
            number = number or status.cluster
            if status.cluster != number:
                strangers.append(endpoint)
                continue
            named[endpoint] = status.member
        cluster.endpoints = [endpoint for endpoint, member in named.items() if member]
        if not cluster.endpoints:
            return Facts(named=named, unreachable=unreachable, strangers=strangers)
        try:
            picture = await cluster.picture()
        except StoreError as error:
            return Facts(named=named, unreachable=unreachable, strangers=strangers, write_error=short(error))
        answering = [member for member in picture.members if member.id in picture.statuses]
        cluster.endpoints = [member.clients[0] for member in picture.answering] or cluster.endpoints
        read = await asyncio.gather(*(read_metrics(member.clients[0]) for member in answering))
        alarms: Sequence[tuple[str, str]] = ()
        writes_s, write_error = await _time_writes(cluster)
        # Without a majority nobody can say whether there are any.
        with contextlib.suppress(StoreError):
            alarms = await cluster.alarms()
        return Facts(
            named=named,
            unreachable=unreachable,
            strangers=strangers,
            picture=picture,
            alarms=alarms,
            metrics={member.id: one for member, one in zip(answering, read, strict=True) if one is not None},
            writes_s=writes_s,
            write_error=write_error,
        )


async def _time_writes(cluster: Cluster) -> tuple[list[float], str]:
    """How long small writes take that a majority has to have on disk. Nothing is left of them: the key has a
    lease."""
    loop = asyncio.get_running_loop()
    key = b64encode(f"outlast-check/{secrets.token_hex(8)}".encode()).decode()
    took: list[float] = []
    try:
        lease = (await cluster.ask_any("/v3/lease/grant", {"TTL": str(LEASE_S)}))["ID"]
        endpoint = cluster.endpoints[0]
        for number in range(WRITES):
            value = b64encode(b"%d" % number).decode()
            began = loop.time()
            body = {"key": key, "value": value, "lease": lease}
            await cluster.ask(endpoint, "/v3/kv/put", body, within_s=WRITE_WITHIN_S)
            took.append(loop.time() - began)
        await cluster.ask(endpoint, "/v3/lease/revoke", {"ID": lease})
    except StoreError as error:
        return took, short(error)
    return took, ""


def usable(findings: Sequence[Finding]) -> bool:
    return not any(finding.severity == "bad" for finding in findings)


def judge(facts: Facts) -> list[Finding]:
    """The worst first."""
    if not any(facts.named.values()):
        who = "; ".join(f"{endpoint}: {why}" for endpoint, why in facts.unreachable.items())
        return [
            Finding(
                severity="bad",
                text=f"no member answers ({who})",
                do="start them (`outlast etcd start`), or name the hosts and client ports where they are",
            )
        ]
    found = [
        *_strangers(facts),
        *_agreement(facts),
        *_versions(facts),
        *_alarms(facts),
        *_space(facts),
        *_speed(facts),
        *_size(facts),
        *_names(facts),
    ]
    return sorted(found, key=lambda finding: finding.severity != "bad")


def _strangers(facts: Facts) -> list[Finding]:
    return [
        Finding(
            severity="bad",
            text=f"{endpoint} belongs to another etcd cluster than the others",
            do="name the members of one cluster",
        )
        for endpoint in facts.strangers
    ]


def _agreement(facts: Facts) -> list[Finding]:
    picture = facts.picture
    found = []
    silent = [member for member in picture.voters if member not in picture.answering]
    if picture.majority and picture.leader is None:
        found.append(
            Finding(
                severity="bad",
                text=f"nobody leads, though {len(picture.answering)} of {len(picture.voters)} members answer",
                do="ask again in a moment; if that does not help, see whether they reach each other",
            )
        )
    elif not picture.majority:
        names = ", ".join(member.title for member in silent)
        found.append(
            Finding(
                severity="bad",
                text=f"no majority: {len(picture.answering)} of {len(picture.voters)} members answer, and "
                "nothing can be agreed on. Nothing is lost, and training goes on without changes of members",
                do=f"start {names} again, with their data",
            )
        )
    elif facts.write_error and not any(alarm == NOSPACE for _, alarm in facts.alarms):
        found.append(Finding(severity="bad", text=f"a write was not accepted: {facts.write_error}"))
    for member in silent:
        endpoints = ",".join(str(one.clients[0]) for one in picture.answering if one.clients)
        found.append(
            Finding(
                severity="warning",
                text=f"{member.title} does not answer ({picture.silent.get(member.id, '')})",
                do=f"start it again; if its data is lost: outlast etcd start --name {member.name} --at … "
                f"--join {endpoints} --replace",
            )
        )
    return found


def _versions(facts: Facts) -> list[Finding]:
    names: dict[str, list[str]] = {}
    for member in facts.picture.members:
        if member.id in facts.picture.statuses:
            names.setdefault(facts.picture.statuses[member.id].version, []).append(member.title)
    found = []
    for version, who in names.items():
        do = "replace the program on one machine after the other (docs/operating.md)"
        try:
            warning = judge_version(version)
        except StoreError as error:
            found.append(Finding(severity="bad", text=f"{', '.join(who)}: {error}", do=do))
            continue
        if warning:
            found.append(Finding(severity="warning", text=f"{', '.join(who)}: {warning}", do=do))
    if len(names) > 1:
        found.append(
            Finding(
                severity="warning",
                text=f"members have different versions: {', '.join(sorted(names))}",
                do="bring all to the newest of them",
            )
        )
    return found


def _alarms(facts: Facts) -> list[Finding]:
    titles = {member.id: member.title for member in facts.picture.members}
    found = []
    for member, alarm in facts.alarms:
        title = titles.get(member, member)
        if alarm == NOSPACE:
            store = spell_store([endpoint for endpoint, one in facts.named.items() if one], "PREFIX")
            text = f"{title} has no space left, and no more writes are accepted"
            do = f"outlast etcd prune {store} --defrag removes what ended jobs left, and ends the alarm"
        elif alarm == CORRUPT:
            text = f"{title} holds other data than the others"
            do = "end it, and replace it: outlast etcd start … --join … --replace, with an empty --data"
        else:
            text, do = f"{title} raises the alarm {alarm}", ""
        found.append(Finding(severity="bad", text=text, do=do))
    return found


def _space(facts: Facts) -> list[Finding]:
    found = []
    for member in facts.picture.members:
        status, metrics = facts.picture.statuses.get(member.id), facts.metrics.get(member.id)
        if status is None:
            continue
        quota = metrics.quota_bytes if metrics is not None else None
        if quota and status.db_bytes > FULL_SHARE * quota:
            found.append(
                Finding(
                    severity="warning",
                    text=f"{member.title} has filled {100 * status.db_bytes // quota} % of its space",
                    do="outlast etcd prune … --defrag, before no more writes are accepted",
                )
            )
        elif (
            status.db_bytes > UNNEEDED_BYTES
            and status.db_bytes - status.used_bytes > UNNEEDED_SHARE * status.db_bytes
        ):
            found.append(
                Finding(
                    severity="warning",
                    text=f"more than half of what {member.title} has on disk is not needed any more",
                    do="outlast etcd prune … --defrag gives it back",
                )
            )
    return found


def _speed(facts: Facts) -> list[Finding]:
    found = []
    do = (
        "give the data directories a disk of their own, or an SSD; if that cannot be, start all members with "
        "--election-ms 2000"
    )
    if facts.writes_s and statistics.median(facts.writes_s) > SLOW_WRITE_S:
        median_ms = 1000 * statistics.median(facts.writes_s)
        found.append(Finding(severity="warning", text=f"writes are slow: {median_ms:.0f} ms (median)", do=do))
    for member in facts.picture.members:
        metrics = facts.metrics.get(member.id)
        if metrics is not None and (metrics.fsync_p99_s or 0.0) > SLOW_FSYNC_S:
            text = f"1 of 100 fsyncs takes more than {1000 * SLOW_FSYNC_S:.0f} ms"
            found.append(
                Finding(severity="warning", text=f"the disk of {member.title} is slow: {text}", do=do)
            )
    return found


def _size(facts: Facts) -> list[Finding]:
    voters = len(facts.picture.voters)
    found = []
    if voters in (1, 2):
        text = "there is one member, and its loss is the loss of everything"
        found.append(
            Finding(
                severity="warning",
                text=text if voters == 1 else "there are two members, and the loss of either stops all",
                do="have three: outlast etcd start --name … --at … --join ENDPOINTS, one after the other",
            )
        )
    elif voters and voters % 2 == 0:
        text = f"{voters} members outlast no more losses than {voters - 1}"
        found.append(Finding(severity="warning", text=text, do="have an odd number"))
    return found + [
        Finding(
            severity="warning",
            text=f"{member.title} is joining, and has no vote yet",
            do="it gets one when it has caught up; if it does not, start it again the same way",
        )
        for member in facts.picture.members
        if member.learner
    ]


def _names(facts: Facts) -> list[Finding]:
    found = []
    known = {endpoint for member in facts.picture.members for endpoint in member.clients}
    for endpoint, why in facts.unreachable.items():
        if endpoint not in known:
            found.append(
                Finding(
                    severity="warning",
                    text=f"{endpoint} does not answer ({why}), and is no address that the cluster knows",
                    do="leave it out, or correct it",
                )
            )
    missing = [
        member for member in facts.picture.members if member.clients and member.id not in facts.named.values()
    ]
    missing = [member for member in missing if not set(member.clients) & set(facts.named)]
    if missing:
        store = spell_store(facts.picture.endpoints, "PREFIX")
        who = ", ".join(member.title for member in missing)
        found.append(
            Finding(
                severity="warning",
                text=f"the cluster has members that the address does not name: {who}",
                do=f"name all of them, so that any may fail: {store}",
            )
        )
    return found
