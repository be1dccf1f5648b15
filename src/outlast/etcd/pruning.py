"""`outlast etcd prune`: what ended jobs have left in a cluster is removed.

A job is over when its document says so, and nobody leads it any more. There is no time in it, nor in etcd, so
nobody can be asked for jobs that ended long ago; an ended job's keys are of no use to anybody after its
coordinators have gone. Whether that is so is compared in the very transaction that deletes, and not on a
read: some versions of etcd answer reads with the past.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from outlast.coordinator.store.gateway import JSON, Endpoint, Gateway
from outlast.coordinator.storekeeper import LEADER, MEMBERSHIP, Document
from outlast.errors import Compacted, StoreError
from outlast.etcd.cluster import NOSPACE, Cluster

PAGE_KEYS = 1000
DEFRAGMENTS_WITHIN_S = 300.0
WELL_AGAIN_WITHIN_S = 60.0

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is in the cluster of one job."""

    prefix: str
    """Of all its keys, with a slash at its end."""
    keys: int
    state: str
    """How it ended, or why it stays, in words."""
    prunable: bool
    document_at: int
    """The revision that its document was written at; 0 if it has none."""

    @property
    def name(self) -> str:
        return self.prefix.rstrip("/")


async def find_jobs(gateway: Gateway, prefix: str, *, abandoned: bool) -> list[Job]:
    """All jobs below a prefix. `abandoned`: those that have not ended may go as well if nobody leads them."""
    keys = await _keys(gateway, prefix)
    jobs = []
    for key in keys:
        folder, slash, name = key.rpartition("/")
        if name == MEMBERSHIP and slash:
            # They are in order, and what is below a folder ends before the character behind the slash.
            own = keys[bisect_left(keys, f"{folder}/") : bisect_left(keys, f"{folder}0")]
            jobs.append(await _look_at(gateway, f"{folder}/", own, abandoned=abandoned))
    return jobs


async def _look_at(gateway: Gateway, prefix: str, keys: Sequence[str], *, abandoned: bool) -> Job:
    answer = await gateway.call("/v3/kv/range", {"key": _text(prefix + MEMBERSHIP)})
    led = f"{prefix}{LEADER}" in keys
    at, outcome, problem = 0, None, ""
    for one in answer.get("kvs", ()):
        at = int(one["mod_revision"])
        try:
            outcome = msgspec.json.decode(b64decode(one.get("value", "")), type=Document).membership.outcome
        except msgspec.DecodeError:
            problem = "it is of another version of Outlast, or no job's"
    if any(key.endswith(f"/{MEMBERSHIP}") and key != prefix + MEMBERSHIP for key in keys):
        problem = "other jobs are below it"
    if problem:
        state, prunable = problem, False
    elif led:
        state = "it has ended, and its coordinators have not gone yet" if outcome else "it is running"
        prunable = False
    elif outcome is not None:
        state, prunable = "finished" if outcome.finished else f"ended: {outcome.reason}", True
    else:
        state, prunable = "no coordinator leads it, and it has not ended", abandoned
    return Job(prefix=prefix, keys=len(keys), state=state, prunable=prunable and at > 0, document_at=at)


async def remove(gateway: Gateway, job: Job) -> int:
    """Delete all keys of a job, if it is still as it was looked at: how many; 0 if it is not."""
    document, leader = _text(job.prefix + MEMBERSHIP), _text(job.prefix + LEADER)
    body = {
        "compare": [
            {"key": document, "target": "MOD", "mod_revision": str(job.document_at)},
            {"key": leader, "target": "CREATE", "create_revision": "0"},
        ],
        "success": [{"request_delete_range": _range(job.prefix)}],
    }
    # It may be said twice: the second time, the comparison fails.
    answer = await gateway.call("/v3/kv/txn", body)
    if not answer.get("succeeded"):
        return 0
    return sum(int(one.get("response_delete_range", {}).get("deleted", 0)) for one in answer["responses"])


async def compact(gateway: Gateway) -> None:
    """Forget the history: what was deleted counts until then. Whoever watches reads anew."""
    revision = (await gateway.call("/v3/kv/range", {"key": _text("outlast")}))["header"]["revision"]
    try:
        await gateway.call("/v3/kv/compaction", {"revision": revision, "physical": True}, within_s=30.0)
    except StoreError as error:
        if isinstance(error, Compacted) or "compacted" in str(error):
            return
        raise


async def defragment(endpoints: Sequence[Endpoint], say: Say) -> None:
    """Give back what is not needed on disk, one member after the other: each stands still meanwhile, and the
    one that leads comes last. Then end alarms about space."""
    async with Cluster(endpoints) as cluster:
        picture = await cluster.picture()
        cluster.endpoints = list(picture.endpoints)
        silent = [member.title for member in picture.voters if member not in picture.answering]
        if silent:
            raise StoreError(
                f"{', '.join(silent)} does not answer, and a member stands still while it is defragmented: "
                "start it again first"
            )
        leader = picture.leader
        for member in sorted(picture.members, key=lambda one: leader is not None and one.id == leader.id):
            if member.id not in picture.statuses:
                continue
            before = picture.statuses[member.id].db_bytes
            await cluster.ask(
                member.clients[0], "/v3/maintenance/defragment", {}, within_s=DEFRAGMENTS_WITHIN_S
            )
            after = await _well_again(cluster, member.clients[0])
            say(f"{member.title} is defragmented: {_megabytes(before)} before, {_megabytes(after)} now")
        for number, alarm in await cluster.alarms():
            if alarm == NOSPACE:
                body = {"action": "DEACTIVATE", "memberID": number, "alarm": NOSPACE}
                await cluster.ask_any("/v3/maintenance/alarm", body)
                say("the alarm about space is ended, and writes are accepted again")


async def _well_again(cluster: Cluster, endpoint: Endpoint) -> int:
    """Its size on disk, as soon as it answers and follows somebody."""
    try:
        async with asyncio.timeout(WELL_AGAIN_WITHIN_S):
            while True:
                try:
                    status = await cluster.status(endpoint)
                    if status.leader != "0":
                        return status.db_bytes
                except StoreError:
                    pass
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise StoreError(f"{endpoint} does not follow the others again after it was defragmented") from None


async def _keys(gateway: Gateway, prefix: str) -> list[str]:
    """All keys below a prefix, a page at a time, as they were at one revision."""
    keys: list[str] = []
    body: JSON = {**_range(prefix), "keys_only": True, "limit": str(PAGE_KEYS)}
    while True:
        answer = await gateway.call("/v3/kv/range", body)
        found = [b64decode(one["key"]) for one in answer.get("kvs", ())]
        keys += [key.decode(errors="replace") for key in found]
        if not answer.get("more"):
            return keys
        body.setdefault("revision", answer["header"]["revision"])
        body["key"] = b64encode(found[-1] + b"\0").decode()


def _range(prefix: str) -> JSON:
    first = prefix.encode()
    return {"key": _text(prefix), "range_end": b64encode(first[:-1] + bytes([first[-1] + 1])).decode()}


def _text(key: str) -> str:
    return b64encode(key.encode()).decode()


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB"
