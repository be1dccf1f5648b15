"""The checkpoints under one URL: who may write, what is there, and what to go on from.

Everything that is decided here is decided by one conditional put: of a claim, or of a manifest. A process may
die between any two calls and leaves at most an object that nobody refers to; nobody has to clean up after it
before the next one can go on.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from typing import NamedTuple

from outlast.errors import CheckpointError, ObjectDamaged, ObjectMissing, StorageUnavailable, VaultTaken
from outlast.protocol.trunk import Base, Checkpoint, Origin, comes_too_late, walk_trunk
from outlast.state.storage.seam import Storage
from outlast.state.vault.manifest import (
    MAX_CLAIM_BYTES,
    MAX_MANIFEST_BYTES,
    Chunk,
    Claim,
    Manifest,
    decode_claim,
    decode_manifest,
    encode_claim,
    encode_manifest,
    same_content,
    same_state,
    sealed,
)
from outlast.state.vault.names import (
    CHUNKS,
    CLAIMS,
    MANIFESTS,
    checkpoint_of,
    chunk_digest,
    claim_name,
    claim_number,
    manifest_name,
    pointer_name,
)
from outlast.state.vault.occupancy import Holder, Process, Watch, find_holder
from outlast.state.vault.search import Problems, Search

CLAIM_ATTEMPTS = 16
CLAIMS_LOOKED_AT = 16
"""A run that lives may hold an earlier claim than its newest, but not one that is much earlier."""


class Usage(NamedTuple):
    """What lies under the URL."""

    claims: int
    manifests: int
    manifest_bytes: int
    chunks: int
    chunk_bytes: int


class Vault:
    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def claims(self) -> list[int]:
        """The numbers of all claims, in order."""
        numbers = (claim_number(stored.key) for stored in self.storage.list(CLAIMS))
        return sorted(number for number in numbers if number is not None)

    def manifests(self) -> list[str]:
        """The names of all manifests, on the trunk and off it, in order of claim and step."""
        return sorted(s.key for s in self.storage.list(MANIFESTS) if checkpoint_of(s.key) is not None)

    def read_claim(self, number: int) -> Claim:
        name = claim_name(number)
        claim = decode_claim(self.storage.get(name, MAX_CLAIM_BYTES), self._where(name))
        if claim.number != number:
            raise ObjectDamaged(f"{self._where(name)} holds claim {claim.number}, which is not its name")
        return claim

    def read_manifest(self, name: str) -> Manifest:
        """ObjectMissing, ObjectDamaged, or CheckpointError if it needs a newer Outlast."""
        manifest = decode_manifest(self.storage.get(name, MAX_MANIFEST_BYTES), self._where(name))
        if manifest_name(manifest.claim, manifest.step) != name:
            raise ObjectDamaged(
                f"{self._where(name)} holds claim {manifest.claim}, step {manifest.step}: not its name"
            )
        return manifest

    def trunk(self) -> list[str]:
        """The names of the checkpoints that a new start may go on from, newest first."""
        return list(self._walk(Problems()))

    def newest(self, trusted: Callable[[Manifest], bool] | None = None) -> Search:
        """The good checkpoints along the trunk, newest first; see `Search`."""
        problems = Problems()
        return Search(self._walk(problems), self.read_manifest, trusted, problems)

    def newest_claim(self) -> int:
        """The number of the newest claim, 0 if there is none. A manifest speaks for
        its claim if that is lost."""
        return max(self._claim_numbers(self.claims(), self.manifests()), default=0)

    def make_claim(
        self,
        *,
        run: str,
        lineage: int,
        base: str | None,
        view: int = 0,
        goes_back: bool = False,
        above: int = 0,
        process: Process | None = None,
        watch: Watch | None = None,
    ) -> Claim:
        """Take the right to write, and to go on from the checkpoint `base`.

        Whoever held it before can commit nothing from now on. VaultTaken if that is another run and it lives;
        finding out may take a few seconds. Its number will be higher than all others here, and than `above`.
        """
        who = process or Process.own()
        for _ in range(CLAIM_ATTEMPTS):
            newest = self.newest_claim()
            self.refuse_if_held(newest, run, watch)
            claim = Claim(
                number=max(newest, above) + 1,
                run=run,
                lineage=lineage,
                base=base,
                view=view,
                goes_back=goes_back,
                host=who.host,
                process=who.pid,
                process_started=who.started,
                pid_space=who.pid_space,
                boot_id=who.boot_id,
                made_at=now_as_text(),
                nonce=secrets.token_hex(8),
            )
            if self._put_claim(claim):
                return sealed(claim)
        raise VaultTaken(f"Too many jobs start with {self.storage.url} at the same time. Start one of them.")

    def holder(self, number: int, watch: Watch | None = None) -> Holder | None:
        """Who holds this claim and lives, if anybody."""
        return find_holder(self.storage, number, self._claim_or_none(number), watch or Watch())

    def refuse_if_held(self, number: int, run: str, watch: Watch | None = None) -> None:
        """VaultTaken if this claim, the newest, is that of another run, which lives."""
        if not number or self._is_of(run, number):
            return
        holder = self.holder(self._under_which_it_writes(number), watch)
        if holder is not None:
            raise VaultTaken(
                f"Another job writes checkpoints to {self.storage.url}: {holder}. End that job first, or "
                "give this one a URL of its own."
            )

    def came_too_late(self, claim: Claim) -> bool:
        """Whether another claim of the same run, for a later view, was made before this one."""
        return self._under_which_it_writes(claim.number) != claim.number

    def refuse_if_superseded(self, claim: int) -> None:
        """VaultTaken if there is a newer claim than this, other than one of the same run that came late."""
        own: Claim | None = None
        for newest in sorted(self._claim_numbers(self.claims(), self.manifests()), reverse=True):
            if newest <= claim:
                return
            own, newer = own or self._claim_or_none(claim), self._claim_or_none(newest)
            if own and newer and comes_too_late(_origin(newer), _origin(own)):
                continue
            who = f"the run {newer.run!r} on {newer.host} (process {newer.process})" if newer else "somebody"
            raise VaultTaken(
                f"Since claim {claim} was made, {who} has taken over {self.storage.url} (claim {newest}). "
                "This run may write no more checkpoints there."
            )

    def commit(self, manifest: Manifest) -> bool:
        """Make a checkpoint of chunks that are all durable. True if this call has made it, False if it was
        there already, because an earlier attempt was not as unsuccessful as it looked.

        VaultTaken if somebody else has the right to write by now. StorageUnavailable leaves open whether the
        checkpoint is there; calling again finds out.
        """
        encoded = encode_manifest(manifest)
        name = manifest_name(manifest.claim, manifest.step)
        self.refuse_if_superseded(manifest.claim)
        try:
            if self.storage.create(name, encoded):
                return True
        except StorageUnavailable:
            if not self._exists(name):
                raise
        there = self.read_manifest(name)
        # Another member of the run may have said the same with another view, time or list of writers.
        if there.run == manifest.run and same_state(there, manifest):
            return False
        if there.run == manifest.run:
            # Members went back behind this step when all who had done it were dead.
            raise CheckpointError(f"{self._where(name)} is there already, from before this run went back")
        raise VaultTaken(
            f"{self._where(name)} is there already, with another state, made by the run {there.run!r}. Two "
            "jobs seem to write to this URL: end one of them, or give it a URL of its own."
        )

    def point(self, name: str, manifest: Manifest) -> None:
        """Have the name point to this checkpoint, as soon as it is there; see `pointers`."""
        key = pointer_name(name, Checkpoint(manifest.claim, manifest.step))
        self.storage.put(key, f'{{"format":"outlast-name","step":{manifest.step}}}\n'.encode())

    def ensure(self, manifest: Manifest) -> Manifest:
        """Commit it, unless the same content was committed before, by another attempt of the run; what is
        there."""
        try:
            self.commit(manifest)
        except VaultTaken:
            raise
        except CheckpointError:
            there = self.read_manifest(manifest_name(manifest.claim, manifest.step))
            if there.run != manifest.run or not same_content(there, manifest):
                raise
            return there
        return self.read_manifest(manifest_name(manifest.claim, manifest.step))

    def known_chunks(self, newest: int = 1, *, under: Claim | None = None) -> dict[str, Chunk]:
        """Chunks that need not be written again, by hash: of the newest good checkpoints on the trunk, and in
        the storage with the right size.

        One checkpoint by default. It is the one that the run has just loaded, and so verified, or made by
        itself, and no pruning takes it away. A chunk that merely lies there may be damaged, and relying on it
        would damage every checkpoint to come. So who works `under` a claim relies on checkpoints that were
        made under it, and on the one that it goes on from; a newer one was passed over for some reason.
        """
        wanted: dict[str, Chunk] = {}
        reliable = (
            manifest
            for name, manifest in self.newest()
            if under is None or manifest.claim == under.number or name == under.base
        )
        for manifest, _ in zip(reliable, range(newest), strict=False):
            for chunk in manifest.chunks:
                wanted.setdefault(chunk.hash, chunk)
        stored = {s.key: s.size_bytes for s in self.storage.list(CHUNKS)} if wanted else {}
        return {
            digest: chunk for digest, chunk in wanted.items() if stored.get(chunk.name) == chunk.stored_bytes
        }

    def usage(self) -> Usage:
        manifests = [s for s in self.storage.list(MANIFESTS) if checkpoint_of(s.key)]
        chunks = [s for s in self.storage.list(CHUNKS) if chunk_digest(s.key)]
        return Usage(
            len(self.claims()),
            len(manifests),
            sum(stored.size_bytes for stored in manifests),
            len(chunks),
            sum(stored.size_bytes for stored in chunks),
        )

    def _walk(self, problems: Problems) -> Iterator[str]:
        claims, names = self.claims(), self.manifests()
        checkpoints = [found for name in names if (found := checkpoint_of(name))]

        def base_of(number: int) -> Base:
            return self._base_of(number, [c for c in checkpoints if c.claim == number], problems)

        def goes_back(number: int) -> bool:
            return self.goes_back(number, problems)

        for checkpoint in walk_trunk(claims, checkpoints, base_of, goes_back):
            yield manifest_name(*checkpoint)

    def goes_back(self, number: int, problems: Problems | None = None) -> bool:
        """Whether this claim was made on purpose to go on from an older checkpoint."""
        try:
            return self.read_claim(number).goes_back
        except (ObjectDamaged, ObjectMissing) as error:
            if problems is not None:
                problems.note(claim_name(number), str(error))
            return False

    def _under_which_it_writes(self, number: int) -> int:
        """The claim that counts of those which the maker of this one, the newest, made before any other."""
        newest = best = self._claim_or_none(number)
        before = [other for other in reversed(self.claims()) if other < number]
        for other in before[:CLAIMS_LOOKED_AT] if newest else ():
            claim = self._claim_or_none(other)
            if claim is None or newest is None or best is None or claim.run != newest.run:
                break
            if comes_too_late(_origin(best), _origin(claim)):
                best = claim
        return best.number if best else number

    def _base_of(self, number: int, own: Collection[Checkpoint], problems: Problems) -> Base:
        try:
            base = self.read_claim(number).base
            return checkpoint_of(base) if base else None
        except (ObjectDamaged, ObjectMissing) as error:
            problems.note(claim_name(number), str(error))
        for checkpoint in sorted(own, reverse=True):
            try:
                base = self.read_manifest(manifest_name(*checkpoint)).base
                return checkpoint_of(base) if base else None
            except (ObjectDamaged, ObjectMissing):
                continue
        return "unknown"

    def _put_claim(self, claim: Claim) -> bool:
        """Whether the claim is ours now. If the answer is lost, what is there decides."""
        encoded, name = encode_claim(claim), claim_name(claim.number)
        try:
            return self.storage.create(name, encoded)
        except StorageUnavailable:
            if not self._exists(name):
                raise
            return self.storage.get(name, MAX_CLAIM_BYTES) == encoded

    def _exists(self, name: str) -> bool:
        try:
            self.storage.get(name, MAX_MANIFEST_BYTES)
        except ObjectMissing:
            return False
        return True

    def _is_of(self, run: str, number: int) -> bool:
        claim = self._claim_or_none(number)
        return claim is not None and claim.run == run

    def _claim_or_none(self, number: int) -> Claim | None:
        try:
            return self.read_claim(number)
        except (ObjectDamaged, ObjectMissing):
            return None

    def _claim_numbers(self, claims: Collection[int], names: Collection[str]) -> set[int]:
        return {*claims, *(found.claim for name in names if (found := checkpoint_of(name)))}

    def _where(self, name: str) -> str:
        return f"{name} in {self.storage.url}"


def _origin(claim: Claim) -> Origin:
    return Origin(claim.run, claim.view)


def now_as_text() -> str:
    """The wall clock in UTC, for people to read."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def program_versions() -> dict[str, str]:
    """For the manifest: what to look at when a checkpoint behaves differently elsewhere."""
    return {"outlast": version("outlast"), "torch": version("torch")}
