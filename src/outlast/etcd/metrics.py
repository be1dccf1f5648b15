"""What a member counts about itself (`/metrics`), as far as it helps to judge it."""

from __future__ import annotations

import asyncio
import contextlib
import re
from dataclasses import dataclass

from outlast.coordinator.store.gateway import Endpoint

WITHIN_S = 2.0
MOST_BYTES = 4 << 20
FSYNC = "etcd_disk_wal_fsync_duration_seconds"
QUOTA = "etcd_server_quota_backend_bytes"
PEERS = "etcd_network_active_peers"

_LINE = re.compile(r"(?P<name>[a-zA-Z_:]\w*)(?:\{(?P<labels>[^}]*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, kw_only=True)
class Metrics:
    quota_bytes: int | None = None
    fsyncs: int = 0
    fsync_mean_s: float | None = None
    fsync_p99_s: float | None = None
    """99 of 100 took at most so long, since the member was started; rounded up to a power of two."""
    active_peers: frozenset[str] = frozenset()
    """The numbers, in hexadecimal digits, of the members that it is in touch with."""


def parse_metrics(text: str) -> Metrics:
    buckets: list[tuple[float, float]] = []
    numbers: dict[str, float] = {}
    peers = set()
    for line in text.splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        labels = dict(_LABEL.findall(found["labels"] or ""))
        with contextlib.suppress(ValueError):
            value = float(found["value"])
            if found["name"] == f"{FSYNC}_bucket":
                buckets.append((float(labels.get("le", "nan")), value))
            elif found["name"] == PEERS:
                if value > 0:
                    peers.add(labels.get("Remote", ""))
            else:
                numbers[found["name"]] = value
    count = numbers.get(f"{FSYNC}_count", 0.0)
    quota = numbers.get(QUOTA)
    return Metrics(
        quota_bytes=int(quota) if quota else None,
        fsyncs=int(count),
        fsync_mean_s=numbers.get(f"{FSYNC}_sum", 0.0) / count if count else None,
        fsync_p99_s=next(
            (most for most, number in sorted(buckets) if count and number >= 0.99 * count), None
        ),
        active_peers=frozenset(peers),
    )


async def read_metrics(endpoint: Endpoint) -> Metrics | None:
    """None where they are not served, or not in time."""
    page = await read_page(endpoint, "/metrics")
    return parse_metrics(page) if page is not None else None


async def read_page(endpoint: Endpoint, path: str) -> str | None:
    """One of those that members have for people and for each other."""
    try:
        async with asyncio.timeout(WITHIN_S):
            # In the older protocol the answer ends with the connection, and comes in one piece.
            reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, limit=MOST_BYTES)
            try:
                writer.write(f"GET {path} HTTP/1.0\r\nHost: {endpoint}\r\n\r\n".encode())
                answer = await reader.read(MOST_BYTES)
                while piece := await reader.read(MOST_BYTES):
                    answer += piece
                    if len(answer) > MOST_BYTES:
                        return None
            finally:
                writer.close()
    except (OSError, EOFError):
        return None
    head, _, body = answer.partition(b"\r\n\r\n")
    return body.decode(errors="replace") if b" 200 " in head.partition(b"\r\n")[0] else None
