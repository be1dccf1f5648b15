"""The store on many machines: an etcd cluster, whose members agree by Raft.

The seam has etcd's shape, so there is little to say: keys lie under the job's prefix, a commit is one
transaction, a lease is a lease. What is not the same is said here.

- etcd times leases in whole seconds, and rounds a short one up.
- A *read* is linearizable, but not in every version there is: before 3.4.42, 3.5.28 and 3.6.9 a member that
  was paused may answer with what it knew before. Commits go through Raft and cannot be misled, so nothing may
  be decided on a read alone (`Storekeeper` proves each one by a commit).
- Revisions count the changes of the whole cluster, also of other jobs. They only ever grow.
"""

from __future__ import annotations

import math
import re
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from outlast.coordinator.store.gateway import JSON, Endpoint, Gateway, Refused
from outlast.coordinator.store.seam import (
    Absent,
    Commit,
    Compare,
    CreatedAt,
    Entry,
    Event,
    ModifiedAt,
    Put,
    Snapshot,
    Write,
    check_transaction,
    check_ttl,
)
from outlast.errors import Compacted, ConfigError, StoreError, StoreFull

SCHEME = "etcd://"
PREFIX_MOST_BYTES = 256
LOSES_DATA = ((3, 5, 0), (3, 5, 2))
"""From the first to the last version that can lose what was agreed on when it is killed."""
READS_RIGHT_SINCE = {(3, 4): 42, (3, 5): 28, (3, 6): 9}
"""The first patch of each minor version that does not answer reads with the past after a pause."""

_HOST_AND_PORT = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.%\w]+)\]|(?P<host>[^:\[\]\s]+)):(?P<port>\d{1,5})")
_EXAMPLE = f"give it as {SCHEME}HOST:PORT,HOST:PORT/PREFIX"
_NOT_FOUND = 5
_EXHAUSTED = 8


class EtcdStore:
    reads_newest = False
    comes_back = True

    def __init__(self, gateway: Gateway, prefix: str, warning: str = "") -> None:
        self.warning = warning
        """What people have to know of the cluster."""
        self._gateway = gateway
        self._prefix = prefix.encode()

    @classmethod
    async def open(cls, address: str) -> EtcdStore:
        """`etcd://host:port,host:port/prefix`; says so if no member can be reached, or none should be."""
        endpoints, prefix = parse(address)
        gateway = Gateway(endpoints)
        try:
            status = await gateway.call("/v3/maintenance/status", {})
            warning = judge_version(str(status.get("version", "")))
        except BaseException:
            await gateway.close()
            raise
        return cls(gateway, prefix, f"{gateway}: {warning}" if warning else "")

    async def read(self, prefix: str) -> Snapshot:
        answer = await self._gateway.call("/v3/kv/range", self._range(prefix))
        entries = (self._entry(one) for one in answer.get("kvs", ()))
        return Snapshot(_revision(answer), {entry.key: entry for entry in entries})

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Commit:
        check_transaction(compares, writes)
        body = {
            "compare": [self._compare(compare) for compare in compares],
            "success": [self._write(write) for write in writes],
        }
        try:
            answer = await self._gateway.call("/v3/kv/txn", body, once=bool(writes))
        except Refused as refused:
            raise _translated(refused) from None
        return Commit(bool(answer.get("succeeded")), _revision(answer))

    async def grant(self, ttl_s: float) -> int:
        check_ttl(ttl_s)
        answer = await self._gateway.call("/v3/lease/grant", {"TTL": str(math.ceil(ttl_s))})
        return int(answer["ID"])

    async def renew(self, lease: int) -> bool:
        answer = await self._gateway.call("/v3/lease/keepalive", {"ID": str(lease)})
        return int(answer.get("TTL", 0)) > 0

    async def revoke(self, lease: int) -> None:
        try:
            await self._gateway.call("/v3/lease/revoke", {"ID": str(lease)})
        except Refused as refused:
            if refused.code != _NOT_FOUND:
                raise

    async def watch(self, prefix: str, after: int) -> AsyncGenerator[Event, None]:
        body = {"create_request": {**self._range(prefix), "start_revision": str(after + 1)}}
        async with aclosing(self._gateway.stream("/v3/watch", body)) as answers:
            async for answer in answers:
                if answer.get("canceled"):
                    if int(answer.get("compact_revision", 0)):
                        raise Compacted(f"the history after revision {after} is no longer there")
                    raise StoreError(f"the watch was ended: {answer.get('cancel_reason', 'no reason')}")
                for event in answer.get("events", ()):
                    entry = event["kv"]
                    gone = event.get("type") == "DELETE"
                    value = None if gone else b64decode(entry.get("value", ""))
                    yield Event(int(entry["mod_revision"]), self._name(entry), value)

    async def close(self) -> None:
        await self._gateway.close()

    def _key(self, key: str) -> str:
        return _text(self._prefix + key.encode())

    def _name(self, entry: JSON) -> str:
        return b64decode(entry["key"])[len(self._prefix) :].decode()

    def _range(self, prefix: str) -> JSON:
        first = self._prefix + prefix.encode()
        # The prefix never ends with the largest byte: it is text.
        return {"key": _text(first), "range_end": _text(first[:-1] + bytes([first[-1] + 1]))}

    def _entry(self, one: JSON) -> Entry:
        return Entry(
            self._name(one),
            b64decode(one.get("value", "")),
            int(one["create_revision"]),
            int(one["mod_revision"]),
            int(one.get("lease", 0)),
        )

    def _compare(self, compare: Compare) -> JSON:
        key = self._key(compare.key)
        match compare:
            case Absent():
                return {"key": key, "target": "CREATE", "create_revision": "0"}
            case CreatedAt():
                return {"key": key, "target": "CREATE", "create_revision": str(compare.revision)}
            case ModifiedAt():
                return {"key": key, "target": "MOD", "mod_revision": str(compare.revision)}

    def _write(self, write: Write) -> JSON:
        if isinstance(write, Put):
            put = {"key": self._key(write.key), "value": _text(write.value), "lease": str(write.lease)}
            return {"request_put": put}
        return {"request_delete_range": {"key": self._key(write.key)}}


def parse(address: str) -> tuple[list[Endpoint], str]:
    """The members' addresses, and the prefix of this job's keys."""
    endpoints, prefix = parse_cluster(address)
    if not prefix or len(prefix.encode()) > PREFIX_MOST_BYTES or not prefix.isprintable():
        raise ConfigError(
            f"the store {address!r} has no prefix that can be used, and other jobs may be there: {_EXAMPLE}"
        )
    return endpoints, f"{prefix}/"


def parse_cluster(address: str) -> tuple[list[Endpoint], str]:
    """The same, where a prefix is not needed."""
    if not address.startswith(SCHEME):
        raise ConfigError(f"the store {address!r} is none that Outlast knows: {_EXAMPLE}")
    hosts, _, prefix = address.removeprefix(SCHEME).partition("/")
    endpoints = []
    for host_and_port in hosts.split(","):
        found = _HOST_AND_PORT.fullmatch(host_and_port)
        if found is None or not 0 < int(found["port"]) < 1 << 16:
            raise ConfigError(f"{host_and_port!r} in the store {address!r} is no host and port: {_EXAMPLE}")
        endpoints.append(Endpoint(found["v6"] or found["host"], int(found["port"])))
    if len(set(endpoints)) != len(endpoints):
        raise ConfigError(f"the store {address!r} names a member twice: name each of them once")
    return endpoints, prefix.strip("/")


def judge_version(version: str) -> str:
    """What people have to know of this version of etcd; raises for one that cannot be trusted."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if found is None:
        return f"its version, {version!r}, is not known"
    major, minor, patch = (int(part) for part in found.groups())
    if LOSES_DATA[0] <= (major, minor, patch) <= LOSES_DATA[1]:
        raise StoreError(
            f"etcd {version} can lose what was agreed on when a member is killed (etcd-io/etcd#13766): use "
            "another version, 3.5.28 or newer"
        )
    if (major, minor) < (3, 4):
        raise StoreError(f"etcd {version} is older than what Outlast was tried with: use 3.5.28 or newer")
    since = READS_RIGHT_SINCE.get((major, minor))
    if since is not None and patch < since:
        return (
            f"etcd {version} may answer a read with the past after a pause (etcd-io/etcd#20418, mended in "
            f"{major}.{minor}.{since}). Outlast decides nothing on a read, so nothing is lost by it, but "
            "what is shown may be old for a moment"
        )
    return ""


def _translated(refused: Refused) -> StoreError:
    if refused.code == _EXHAUSTED and "space" in refused.message:
        return StoreFull(
            f"etcd has no space left ({refused.message}): `outlast etcd prune STORE --defrag` removes what "
            "ended jobs left there, and ends the alarm"
        )
    return refused


def _revision(answer: JSON) -> int:
    return int(answer["header"]["revision"])


def _text(value: bytes) -> str:
    return b64encode(value).decode()
