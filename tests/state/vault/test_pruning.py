"""Pruning: the right checkpoints go, and whatever happens, those that stay are whole."""

import contextlib

import pytest
from checkpoints import claimed, load, manifest_of, save, some_state, written
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_storage import Failing, MemoryStorage

from outlast.errors import ConfigError, StorageUnavailable, VaultTaken
from outlast.state.vault.manifest import Claim
from outlast.state.vault.names import (
    CHUNKS,
    Era,
    beat_name,
    chunk_digest,
    chunk_era,
    chunk_name,
    manifest_name,
)
from outlast.state.vault.occupancy import note_end
from outlast.state.vault.pruning import prune
from outlast.state.vault.retention import Keep, kept_steps
from outlast.state.vault.vault import Vault


def filled(steps: range = range(10, 60, 10)) -> tuple[Vault, MemoryStorage, Claim]:
    storage = MemoryStorage()
    vault = Vault(storage)
    claim = claimed(vault)
    for step in steps:
        save(vault, claim, step)
    return vault, storage, claim


def steps_of(vault: Vault) -> list[int]:
    """All that are there must be whole."""
    manifests = [vault.read_manifest(name) for name in vault.manifests()]
    for manifest in manifests:
        load(vault, manifest)
    return [manifest.step for manifest in manifests]


def chunk_keys(storage: MemoryStorage) -> set[str]:
    return {key for key in storage.objects if key.startswith(CHUNKS)}


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 200), max_size=30),
    st.integers(1, 6),
    st.one_of(st.none(), st.integers(1, 50)),
    st.lists(st.integers(0, 30), max_size=8),
)
def test_retention(steps: list[int], last: int, every: int | None, more: list[int]) -> None:
    keep = Keep(last=last, every=every)
    kept = kept_steps(steps, keep)
    assert kept <= set(steps) and set(sorted(set(steps))[-last:]) <= kept
    assert kept_steps(sorted(kept), keep) == kept, "pruning twice is pruning once"
    if every is None:
        assert len(kept) == min(last, len(set(steps)))
    else:
        assert {step // every for step in kept} == {step // every for step in steps}
        # What is kept for its window stays kept, whatever comes later.
        firsts = {
            min(step for step in steps if step // every == window) for window in {s // every for s in steps}
        }
        top = max(steps, default=0)
        assert firsts <= kept_steps([*kept, *(top + step for step in more)], keep)


@pytest.mark.parametrize(("keep", "field"), [(Keep(last=0), "last = 0"), (Keep(every=0), "every = 0")])
def test_settings_that_cannot_work(keep: Keep, field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        keep.validate()


def test_what_is_not_kept_goes_with_its_chunks() -> None:
    vault, storage, claim = filled()
    shared = vault.read_manifest(manifest_name(1, 10)).chunks[0].hash
    storage.objects[chunk_name("cd" * 32, ".z")] = b"left by a save that died"
    storage.objects["chunks/readme"] = b"not ours"
    pruned = prune(vault, Keep(last=2), claim=claim.number)
    assert steps_of(vault) == [40, 50]
    assert pruned.manifests == [manifest_name(1, step) for step in (10, 20, 30)] and not pruned.problems
    assert pruned.chunks == 7 and pruned.chunk_bytes > 3 << 20
    needed = {
        chunk_name(c.hash, c.codec) for s in (40, 50) for c in vault.read_manifest(manifest_name(1, s)).chunks
    }
    assert chunk_keys(storage) == needed | {"chunks/readme"} and chunk_name(shared, "") in needed
    again = prune(vault, Keep(last=2), claim=claim.number)
    assert again.manifests == [] and again.chunks == 0


def test_keeping_one_of_every_so_many_steps() -> None:
    vault, _, claim = filled(range(5, 60, 10))
    prune(vault, Keep(last=1, every=20), claim=claim.number)
    assert steps_of(vault) == [5, 25, 45, 55]


def test_a_dry_run_changes_nothing_and_needs_no_claim() -> None:
    vault, storage, _ = filled()
    before = dict(storage.objects)
    dry = prune(vault, Keep(last=1), claim=None, dry_run=True)
    assert storage.objects == before
    real = prune(vault, Keep(last=1), claim=1)
    assert (dry.manifests, dry.chunks, dry.chunk_bytes) == (real.manifests, real.chunks, real.chunk_bytes)


def test_branches_off_the_trunk_go() -> None:
    vault, storage, first = filled()
    second = claimed(vault, run="second", base=manifest_name(1, 20))
    note_end(storage, first)
    save(vault, second, 25)
    prune(vault, Keep(last=3), claim=second.number)
    assert steps_of(vault) == [10, 20, 25]
    assert beat_name(1) not in storage.objects


def test_a_save_in_progress_is_protected() -> None:
    vault, storage, claim = filled(range(10, 30, 10))
    image, tensors = some_state(10)
    _, chunks = written(storage, image, tensors, vault.known_chunks(newest=2))
    prune(vault, Keep(last=1), claim=claim.number, protected={chunk.hash for chunk in chunks})
    vault.commit(manifest_of(claim, 30, image, chunks))
    assert steps_of(vault) == [20, 30]


def test_a_commit_in_the_middle_of_it_stays_whole() -> None:
    vault, storage, claim = filled(range(10, 40, 10))
    image, tensors = some_state(10)
    _, chunks = written(storage, image, tensors, vault.known_chunks(newest=3))

    def commit(call: str, key: str) -> None:
        if call == "delete":
            storage.before = lambda call, key: None
            vault.commit(manifest_of(claim, 40, image, chunks))

    storage.before = commit
    prune(vault, Keep(last=1), claim=claim.number)
    assert steps_of(vault) == [30, 40]


def test_a_chunk_that_came_after_the_listing_is_not_touched() -> None:
    vault, storage, claim = filled()
    late = chunk_name("ef" * 32, "")

    def arrive(call: str, key: str) -> None:
        if call == "get":
            storage.objects[late] = b"new"

    storage.before = arrive
    prune(vault, Keep(last=1), claim=claim.number)
    assert late in storage.objects


def test_who_was_evicted_deletes_nothing_of_what_the_others_write() -> None:
    """It does not know of their view yet; their save is under way, and not named by any manifest."""
    vault, storage, claim = filled()
    image, tensors = some_state(70)
    _, left = written(storage, image, tensors, {}, era=Era(1, 3, 0))
    _, chunks = written(storage, image, tensors, {}, era=Era(1, 4, 1))
    prune(vault, Keep(last=1), claim=claim.number, era=Era(1, 3, 0))
    assert not {chunk.name for chunk in left} & storage.objects.keys(), (
        "what a save of its own left is garbage"
    )
    vault.commit(manifest_of(claim, 70, image, chunks))
    assert steps_of(vault) == [50, 70]


def test_who_is_stopped_in_a_deletion_deletes_nothing_that_is_written_again() -> None:
    """A save was given up. Meanwhile the others are in a later view, and their state has the same bytes."""
    vault, storage, claim = filled()
    image, tensors = some_state(70)
    written(storage, image, tensors, {}, era=Era(1, 3, 0))

    def evicted(call: str, key: str) -> None:
        if call == "delete" and key.startswith(CHUNKS):
            storage.before = lambda call, key: None
            _, chunks = written(storage, image, tensors, dict(vault.known_chunks()), era=Era(1, 4, 1))
            vault.commit(manifest_of(claim, 70, image, chunks))

    storage.before = evicted
    prune(vault, Keep(last=1), claim=claim.number, era=Era(1, 3, 0))
    assert steps_of(vault) == [50, 70]


def test_eras() -> None:
    mine = Era(2, 5, 1)
    assert chunk_era(chunk_name("ab" * 32, "zstd-shuffle", str(mine))) == mine
    assert chunk_era(chunk_name("ab" * 32, "")) is None
    assert chunk_digest(chunk_name("ab" * 32, "", str(mine))) == "ab" * 32
    over = [Era(1, 9, 0), Era(2, 4, 3), mine]
    assert all(era.is_over_for(mine) for era in over)
    assert not any(era.is_over_for(mine) for era in (Era(2, 5, 7), Era(2, 6, 0), Era(3, 1, 1)))


def test_who_was_superseded_deletes_nothing_more() -> None:
    vault, storage, claim = filled()
    claimed(vault, run="next", base=manifest_name(1, 50))
    before = dict(storage.objects)
    with pytest.raises(VaultTaken, match="'next'"):
        prune(vault, Keep(last=1), claim=claim.number)
    assert storage.objects == before


def test_unreadable_manifests_keep_all_chunks() -> None:
    vault, storage, claim = filled()
    bad = manifest_name(1, 30)
    storage.flip_bit(bad, 60)
    before = chunk_keys(storage)
    pruned = prune(vault, Keep(last=2), claim=claim.number)
    assert pruned.chunks_left_alone and pruned.problems[0].name == bad
    assert vault.manifests() == [bad, manifest_name(1, 40), manifest_name(1, 50)]
    assert chunk_keys(storage) == before
    forced = prune(vault, Keep(last=2), claim=claim.number, force=True)
    assert forced.manifests == [bad] and not forced.chunks_left_alone and forced.chunks
    assert steps_of(vault) == [40, 50]


def test_what_is_damaged_does_not_take_the_place_of_what_is_good() -> None:
    vault, storage, claim = filled()
    for step in (40, 50):
        chunk = vault.read_manifest(manifest_name(1, step)).chunks[-1]
        del storage.objects[chunk_name(chunk.hash, "")]
    prune(vault, Keep(last=1), claim=claim.number)
    assert vault.manifests() == [manifest_name(1, 30)]
    chunk = vault.read_manifest(manifest_name(1, 30)).chunks[-1]
    storage.cut_short(chunk_name(chunk.hash, ""))
    prune(vault, Keep(last=1), claim=claim.number)
    assert vault.manifests() == [manifest_name(1, 30)], "where none is good, none is deleted"


@pytest.mark.parametrize("lost_answer", [False, True])
def test_a_death_at_any_call_leaves_only_garbage(lost_answer: bool) -> None:
    for at in range(1000):
        vault, storage, claim = filled(range(10, 40, 10))
        failing = Failing(storage, at, dead=True, lost_answer=lost_answer)
        with contextlib.suppress(StorageUnavailable):
            prune(vault, Keep(last=1), claim=claim.number)
        storage.before = storage.after = lambda call, key: None
        assert 30 in steps_of(vault), f"call {at}"
        prune(vault, Keep(last=1), claim=claim.number)
        assert steps_of(vault) == [30] and len(chunk_keys(storage)) == 6
        if not failing.failed:
            break
    assert lost_answer or at > 10
