"""The vault: one writer at a time, checkpoints that are there or not, and the newest good one."""

import threading

import msgspec
import pytest
from checkpoints import claimed, dead_process, load, manifest_of, save, some_state, written
from memory_storage import Failing, MemoryStorage

from outlast.errors import (
    CheckpointError,
    ObjectDamaged,
    OutlastError,
    StorageUnavailable,
    VaultTaken,
)
from outlast.state.vault.manifest import Claim, Manifest, decode_claim, encode_manifest
from outlast.state.vault.names import beat_name, chunk_name, claim_name, manifest_name
from outlast.state.vault.occupancy import Process, Watch
from outlast.state.vault.sealing import laid_out, seal_of
from outlast.state.vault.vault import Vault

AT_ONCE = Watch(beats=2, wait=lambda seconds: None)


def new_vault() -> tuple[Vault, MemoryStorage]:
    storage = MemoryStorage()
    return Vault(storage), storage


def prepared(vault: Vault, claim: Claim, step: int) -> Manifest:
    """All chunks are there, only the commit is missing."""
    image, tensors = some_state(step, elements=100)
    _, chunks = written(vault.storage, image, tensors, {})
    return manifest_of(claim, step, image, chunks)


def newest_step(vault: Vault) -> int | None:
    """As a job does it: the newest checkpoint that can be loaded, whole."""
    search = vault.newest()
    for name, manifest in search:
        try:
            load(vault, manifest)
        except OutlastError as error:
            search.reject(name, str(error))
            continue
        return manifest.step
    return None


def test_an_empty_vault() -> None:
    vault, _ = new_vault()
    assert vault.claims() == [] == vault.manifests() == vault.trunk()
    assert list(vault.newest()) == [] and vault.known_chunks() == {} and vault.newest_claim() == 0
    assert sum(vault.usage()) == 0


def test_a_life() -> None:
    vault, storage = new_vault()
    first = claimed(vault)
    assert first.number == 1 and first.base is None
    for step in (10, 20, 30):
        save(vault, first, step)
    storage.objects["manifests/readme.txt"] = storage.objects["claims/notes"] = b"not ours"
    name = manifest_name(1, 20)
    second = claimed(vault, run="another", base=name)
    save(vault, second, 25)
    assert vault.claims() == [1, 2] and len(vault.manifests()) == 4
    assert vault.trunk() == [manifest_name(2, 25), name, manifest_name(1, 10)]
    assert newest_step(vault) == 25
    usage = vault.usage()
    assert (usage.claims, usage.manifests) == (2, 4) and usage.chunk_bytes > 4 << 20


def test_foreign_objects_are_nobodys_business() -> None:
    vault, storage = new_vault()
    for name in ("claims/1.json", "claims/000000001.json", "manifests/1-2.json", "chunks/x", "chunks/ab/cd"):
        storage.objects[name] = b"?"
    assert vault.claims() == [] and vault.manifests() == [] and vault.usage().chunks == 0
    assert claimed(vault).number == 1


@pytest.mark.parametrize("damage", [MemoryStorage.flip_bit, MemoryStorage.cut_short])
@pytest.mark.parametrize("kind", ["claim", "manifest", "chunk", "compressed chunk"])
def test_the_newest_good_one_is_used_when_any_object_is_damaged(kind: str, damage: object) -> None:
    vault, storage = new_vault()
    first = claimed(vault)
    codec = "zstd-shuffle" if kind == "compressed chunk" else ""
    save(vault, first, 10)
    second = claimed(vault, base=manifest_name(1, 10))
    last = save(vault, second, 20, codec)
    new = next(
        chunk for chunk in last.chunks if chunk.hash not in {c.hash for c in _read(vault, 1, 10).chunks}
    )
    assert new.codec == codec
    name = {"claim": claim_name(2), "manifest": manifest_name(2, 20)}.get(
        kind, chunk_name(new.hash, new.codec)
    )
    damage(storage, name)  # type: ignore[operator]
    if kind in ("claim", "manifest"):
        # The last byte is a line end, which may be lost: what has a meaning must not.
        storage.cut_short(name)
        storage.flip_bit(name, 40)
    search = vault.newest()
    found = newest_step(vault)
    if kind == "claim":
        # Its checkpoint says once more what the claim said.
        assert found == 20 and vault.trunk() == [manifest_name(2, 20), manifest_name(1, 10)]
        list(search)
        assert [problem.name for problem in search.problems] == [name]
    else:
        assert found == 10
    if kind == "manifest":
        assert [manifest.step for _, manifest in search] == [10]
        ((bad, reason),) = search.problems
        assert bad == name and name in reason and storage.url in reason


def _read(vault: Vault, claim: int, step: int) -> Manifest:
    return vault.read_manifest(manifest_name(claim, step))


def test_a_damaged_claim_without_checkpoints_is_passed_over() -> None:
    vault, storage = new_vault()
    save(vault, claimed(vault), 10)
    claimed(vault, base=manifest_name(1, 10))
    storage.objects[claim_name(2)] = b""
    search = vault.newest()
    assert [manifest.step for _, manifest in search] == [10]
    assert [problem.name for problem in search.problems] == [claim_name(2)]
    assert vault.make_claim(run="next", lineage=1, base=None, watch=AT_ONCE).number == 3


def test_objects_in_each_others_places_are_damaged() -> None:
    vault, storage = new_vault()
    claim = claimed(vault)
    save(vault, claim, 10)
    storage.objects[manifest_name(1, 20)] = storage.objects[manifest_name(1, 10)]
    storage.objects[claim_name(2)] = storage.objects[claim_name(1)]
    with pytest.raises(ObjectDamaged, match="not its name"):
        _read(vault, 1, 20)
    with pytest.raises(ObjectDamaged, match="not its name"):
        vault.read_claim(2)


def test_who_is_not_trusted_is_passed_over() -> None:
    vault, _ = new_vault()
    claim = claimed(vault)
    for step in (10, 20):
        save(vault, claim, step)
    search = vault.newest(lambda manifest: manifest.step != 20)
    assert [manifest.step for _, manifest in search] == [10]
    assert "not trusted" in search.problems[0].reason


def test_a_storage_that_does_not_answer_makes_no_checkpoint_bad() -> None:
    vault, storage = new_vault()
    claim = claimed(vault)
    for step in (10, 20):
        save(vault, claim, step)
    search = vault.newest()

    def unreachable(call: str, key: str) -> None:
        if key == manifest_name(1, 20):
            raise StorageUnavailable("no answer")

    storage.before = unreachable
    with pytest.raises(StorageUnavailable):
        next(search)


def test_a_checkpoint_of_a_newer_outlast_is_no_reason_to_go_back() -> None:
    vault, storage = new_vault()
    claim = claimed(vault)
    save(vault, claim, 10)
    document = msgspec.json.decode(encode_manifest(prepared(vault, claim, 20)))
    document["version"] = 99
    storage.objects[manifest_name(1, 20)] = laid_out({**document, "seal": seal_of(document)})
    with pytest.raises(CheckpointError, match="Update outlast"):
        next(vault.newest())


def test_one_of_many_gets_each_claim() -> None:
    vault, _storage = new_vault()
    barrier = threading.Barrier(8)
    won: list[Claim] = []

    def start(index: int) -> None:
        barrier.wait()
        # The same run, as replicas that were cut off from each other.
        won.append(vault.make_claim(run="run", lineage=1, base=None))

    threads = [threading.Thread(target=start, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(claim.number for claim in won) == vault.claims() == list(range(1, 9))
    assert {claim.number: claim for claim in won} == {n: vault.read_claim(n) for n in range(1, 9)}


def test_of_two_jobs_that_start_together_one_is_told() -> None:
    vault, storage = new_vault()
    other = Vault(storage)

    def slip_in(call: str, key: str) -> None:
        if call == "create":
            storage.before = lambda call, key: None
            other.make_claim(run="the quicker one", lineage=1, base=None)

    storage.before = slip_in
    with pytest.raises(VaultTaken, match="the quicker one"):
        vault.make_claim(run="mine", lineage=1, base=None)
    assert vault.claims() == [1]


@pytest.mark.parametrize("lost_answer", [False, True])
def test_a_claim_with_an_unknown_outcome(lost_answer: bool) -> None:
    vault, storage = new_vault()

    def lose(call: str, key: str) -> None:
        if call == "create":
            raise StorageUnavailable("the connection broke")

    setattr(storage, "after" if lost_answer else "before", lose)
    if lost_answer:
        claim = claimed(vault)
        assert vault.read_claim(1) == claim
    else:
        with pytest.raises(StorageUnavailable):
            claimed(vault)
        assert vault.claims() == []


def test_an_unknown_outcome_may_hide_anothers_claim() -> None:
    vault, storage = new_vault()
    other = Vault(storage)

    def lose(call: str, key: str) -> None:
        if call == "create":
            storage.before = lambda call, key: None
            claimed(other, run="dead already")
            raise StorageUnavailable("the connection broke")

    storage.before = lose
    assert claimed(vault).number == 2


@pytest.mark.parametrize("lost_answer", [False, True])
def test_a_commit_with_an_unknown_outcome(lost_answer: bool) -> None:
    vault, storage = new_vault()
    manifest = prepared(vault, claimed(vault), 10)

    def lose(call: str, key: str) -> None:
        if call == "create":
            raise StorageUnavailable("the connection broke")

    setattr(storage, "after" if lost_answer else "before", lose)
    if lost_answer:
        assert vault.commit(manifest) is False, "it is there, and nothing is left to do"
    else:
        with pytest.raises(StorageUnavailable):
            vault.commit(manifest)
        assert vault.manifests() == []
        storage.before = lambda call, key: None
        assert vault.commit(manifest) is True
    assert newest_step(vault) == 10


def test_committing_again_is_done_and_another_state_is_not() -> None:
    vault, _ = new_vault()
    claim = claimed(vault)
    manifest = prepared(vault, claim, 10)
    assert vault.commit(manifest) is True and vault.commit(manifest) is False
    later = msgspec.structs.replace(manifest, view=9, saved_at="1970-01-01T00:00:00Z", writers={"3": "x"})
    assert vault.commit(later) is False, "the same state, told by somebody else of the run"
    other = msgspec.structs.replace(prepared(vault, claim, 11), step=10)
    with pytest.raises(CheckpointError, match="went back") as found:
        vault.commit(other)
    assert not isinstance(found.value, VaultTaken), "the run may go on saving"
    with pytest.raises(VaultTaken, match="another state"):
        vault.commit(msgspec.structs.replace(manifest, run="a stranger"))


def test_who_was_superseded_commits_nothing() -> None:
    vault, _ = new_vault()
    manifest = prepared(vault, claimed(vault), 10)
    vault.make_claim(run="the next", lineage=1, base=None)
    with pytest.raises(VaultTaken, match=r"'the next' on .*claim 2"):
        vault.commit(manifest)
    assert vault.manifests() == []


def test_a_manifest_put_late_is_off_the_trunk() -> None:
    """The old writer has looked for newer claims, then stops; before its put, another goes on."""
    vault, storage = new_vault()
    first = claimed(vault)
    save(vault, first, 10)
    late = prepared(vault, first, 20)

    def overtake(call: str, key: str) -> None:
        if call == "create":
            storage.before = lambda call, key: None
            taken.append(claimed(Vault(storage), run="the next", base=manifest_name(1, 10)))

    taken: list[Claim] = []
    storage.before = overtake
    vault.commit(late)
    assert vault.trunk() == [manifest_name(1, 20), manifest_name(1, 10)], "nothing hangs on the next one yet"
    save(vault, taken[0], 15)
    assert vault.trunk() == [manifest_name(2, 15), manifest_name(1, 10)] and len(vault.manifests()) == 3


def test_a_claim_for_a_view_that_is_over_supersedes_nobody() -> None:
    """Its maker was stopped just before the put, and evicted."""
    vault, _ = new_vault()
    process = dead_process()
    first = vault.make_claim(run="run", lineage=2, view=7, base=None, process=process)
    late = vault.make_claim(run="run", lineage=1, view=3, base=None, process=process)
    assert vault.came_too_late(late) and not vault.came_too_late(first)
    save(vault, first, 10)
    vault.make_claim(run="run", lineage=3, view=9, base=manifest_name(1, 10), process=process)
    with pytest.raises(VaultTaken, match="claim 3"):
        save(vault, first, 20)


def test_a_late_claim_does_not_hide_that_its_run_lives() -> None:
    vault, storage = new_vault()
    elsewhere = Process("elsewhere", 1, 1, "", "")
    first = vault.make_claim(run="run", lineage=2, view=7, base=None, process=elsewhere)
    vault.make_claim(run="run", lineage=1, view=3, base=None, process=elsewhere)
    beats = iter(range(100))

    def beat(_: float) -> None:
        storage.objects[beat_name(first.number)] = str(next(beats)).encode()

    with pytest.raises(VaultTaken, match="'run'"):
        vault.make_claim(run="another", lineage=1, base=None, watch=Watch(beats=2, wait=beat))


def test_known_chunks_are_there_and_whole() -> None:
    vault, storage = new_vault()
    claim = claimed(vault)
    save(vault, claim, 10)
    last = save(vault, claim, 20)
    known = vault.known_chunks()
    assert known.keys() == {chunk.hash for chunk in last.chunks}
    assert len(vault.known_chunks(newest=2)) > len(known)
    gone, short = last.chunks[0], last.chunks[2]
    del storage.objects[chunk_name(gone.hash, "")]
    storage.cut_short(chunk_name(short.hash, ""))
    assert known.keys() - vault.known_chunks().keys() == {gone.hash, short.hash}


@pytest.mark.parametrize("lost_answer", [False, True])
def test_dying_at_any_call_leaves_a_vault_that_the_next_can_use(lost_answer: bool) -> None:
    """Claim, save, commit, claim again, save, commit: the storage is gone from the n-th call on."""
    for at in range(1000):
        vault, storage = new_vault()
        failing = Failing(storage, at, dead=True, lost_answer=lost_answer)
        committed = 0
        try:
            first = claimed(vault)
            save(vault, first, 10)
            committed = 10
            second = claimed(vault, run="second", base=manifest_name(1, 10))
            save(vault, second, 20)
            committed = 20
        except (StorageUnavailable, AssertionError):
            pass
        storage.before = storage.after = lambda call, key: None
        found = newest_step(vault)
        assert (found or 0) >= committed, f"call {at}"
        third = claimed(vault, run="third", base=vault.trunk()[0] if found else None)
        save(vault, third, 30)
        assert newest_step(vault) == 30
        if not failing.failed:
            break
    assert at > 10


def test_clocks_decide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    vault, _ = new_vault()
    times = iter(["2099-01-01T00:00:00Z", "1970-01-01T00:00:00Z"])
    monkeypatch.setattr("outlast.state.vault.vault.now_as_text", lambda: next(times))
    first = claimed(vault)
    future = msgspec.structs.replace(prepared(vault, first, 10), saved_at="2099-01-01T00:00:00Z")
    vault.commit(future)
    second = claimed(vault, run="next", base=manifest_name(1, 10))
    past = msgspec.structs.replace(prepared(vault, second, 20), saved_at="1970-01-01T00:00:00Z")
    vault.commit(past)
    assert second.made_at < first.made_at and newest_step(vault) == 20


def test_a_bad_base_is_refused() -> None:
    vault, _ = new_vault()
    for base in ("manifests/00000001-000000000001.json", "latest"):
        with pytest.raises(ValueError, match=r"later one|base"):
            vault.make_claim(run="r", lineage=1, base=base, process=dead_process())
    assert vault.claims() == []


def test_a_claim_is_made_for_whom_it_is_said() -> None:
    vault, storage = new_vault()
    claim = vault.make_claim(run="r", lineage=3, base=None, process=Process("far", 7, 8, "pid:[1]", "boot"))
    assert (claim.host, claim.process, claim.process_started, claim.boot_id) == ("far", 7, 8, "boot")
    assert decode_claim(storage.objects[claim_name(1)], "c") == claim


def test_chunks_of_a_checkpoint_that_was_passed_over_are_not_relied_on() -> None:
    """A run that does the steps of a damaged checkpoint again comes to the same bytes, and to its chunks."""
    vault, _ = new_vault()
    first = claimed(vault)
    good, damaged = save(vault, first, 10), save(vault, first, 20)
    claim = claimed(vault, base=manifest_name(1, 10))
    own = {chunk.hash for chunk in damaged.chunks} - {chunk.hash for chunk in good.chunks}
    assert own <= vault.known_chunks().keys(), "the claim has no checkpoint yet, so this is the newest"
    assert vault.known_chunks(under=claim).keys() == {chunk.hash for chunk in good.chunks}
    newest = save(vault, claim, 30)
    assert vault.known_chunks(under=claim).keys() == {chunk.hash for chunk in newest.chunks}
