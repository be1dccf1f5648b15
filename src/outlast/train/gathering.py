"""A checkpoint is read by all who wait for it: each reads some of its chunks, and one puts them together.

The founder of a lineage chooses the checkpoint and asks the other members of its view, which have nothing to
do but wait for the state, to read a share of it and to send it over the mesh. So a storage is read once in
all, and as fast as all machines together can read. It is help and nothing more: what does not come, because
its reader is gone, slow or finds the chunk damaged, the founder reads by itself; and it verifies every hash
itself, whoever has read the chunk.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from itertools import pairwise

from blake3 import blake3

from outlast.errors import OutlastError, ProtocolError
from outlast.protocol.header import Header
from outlast.protocol.kinds import Kind, ReadRequest, encode
from outlast.protocol.views import Member, View
from outlast.state.image import Assembly
from outlast.state.vault.chunks import read_chunk
from outlast.state.vault.crew import work_off
from outlast.state.vault.manifest import Manifest
from outlast.state.vault.names import manifest_name
from outlast.train.tiers import Tiers

log = logging.getLogger(__name__)

SILENT_AT_MOST_S = 5.0
"""So long after its last word, a reader is not waited for any more."""

VERIFYING_THREADS = 4


class Gathering:
    """The founder's side. `room` and `arrived` are called under the engine's lock, by the mesh."""

    def __init__(
        self,
        view: View,
        replica: int,
        changed: threading.Condition,
        send: Callable[[Member, Header, bytes], None],
        header: Callable[[Kind], Header],
    ) -> None:
        self._view = view
        self._others = [member for member in view.members if member.replica != replica]
        self._changed = changed
        self._send = send
        self._header = header
        self._assembly: Assembly | None = None
        self._asked: set[int] = set()
        self._came: set[int] = set()
        self._heard_at = 0.0
        self.over = False

    def ask(self, tier: int, manifest: Manifest, assembly: Assembly) -> list[int]:
        """Ask the others for their shares; what is left for the founder itself."""
        count = len(manifest.chunks)
        shares = _shares(count, len(self._others) + 1)
        name = manifest_name(manifest.claim, manifest.step)
        with self._changed:
            self._assembly, self._came = assembly, set()
            self._asked = {index for share in shares[1:] for index in share}
            self._heard_at = time.monotonic()
            for member, share in zip(self._others, shares[1:], strict=True):
                request = ReadRequest(tier, name, manifest.seal, tuple(share))
                self._send(member, self._header(Kind.READ), encode(request))
        return shares[0]

    def collect(self, manifest: Manifest, assembly: Assembly) -> list[int]:
        """Wait for what was asked for, and verify it; what did not come or is not what it should be."""
        with self._changed:
            while self._asked - self._came and not self.over:
                left_s = self._heard_at + SILENT_AT_MOST_S - time.monotonic()
                if left_s <= 0:
                    break
                self._changed.wait(left_s)
            missing = sorted(self._asked - self._came)
            self._assembly = None
        bad: list[int] = []

        def verify(index: int) -> None:
            if blake3(assembly.slot(index)).hexdigest() == manifest.chunks[index].hash:
                assembly.note(index)
            else:
                bad.append(index)

        work_off(sorted(self._asked - set(missing)), verify, VERIFYING_THREADS)
        if missing or bad:
            log.info("%d chunks did not come from others, and are read here", len(missing) + len(bad))
        return sorted({*missing, *bad})

    def room(self, header: Header) -> memoryview | None:
        """Where to receive a chunk that somebody has read: not in its place, where the founder may be about
        to read it by itself, having waited long enough."""
        if not self._expects(header):
            return None
        assert self._assembly is not None
        size = len(self._assembly.pieces[header.lo])
        if size != header.size:
            raise ProtocolError(f"chunk {header.lo} of a checkpoint has {header.size} bytes, not {size}")
        return memoryview(bytearray(size))

    def arrived(self, header: Header, chunk: memoryview) -> None:
        if self._expects(header):
            assert self._assembly is not None
            self._assembly.slot(header.lo)[:] = chunk
            self._came.add(header.lo)
            self._heard_at = time.monotonic()
            self._changed.notify_all()

    def _expects(self, header: Header) -> bool:
        mine = self._assembly is not None and header.view == self._view.number
        return mine and header.lo in self._asked - self._came


def read_for(
    tiers: Tiers, request: ReadRequest, send: Callable[[int, memoryview], None], wanted: Callable[[], bool]
) -> None:
    """Another member's side: read what the founder asks for, and send it, for as long as it is wanted."""
    if not 0 <= request.tier < len(tiers.vaults):
        raise ProtocolError(f"there is no tier {request.tier} of checkpoints here")
    vault = tiers.vaults[request.tier]
    manifest = vault.read_manifest(request.name)
    if manifest.seal != request.seal:
        raise ProtocolError(f"{request.name} in {vault.storage.url} is not what the founder has read there")

    def read(index: int) -> None:
        if not wanted() or not 0 <= index < len(manifest.chunks):
            return
        memory = memoryview(bytearray(manifest.chunks[index].size))
        try:
            read_chunk(vault.storage, manifest, manifest.chunks[index], memory)
        except OutlastError as error:
            # The founder finds out by itself, and decides what that means.
            log.warning("chunk %d of %s cannot be read here: %s", index, request.name, error)
            return
        send(index, memory)

    work_off(request.indices, read, VERIFYING_THREADS)


def _shares(count: int, readers: int) -> list[list[int]]:
    """Every reader gets neighbours, which lie next to each other on a disk."""
    bounds = [count * place // readers for place in range(readers + 1)]
    return [list(range(lo, hi)) for lo, hi in pairwise(bounds)]
