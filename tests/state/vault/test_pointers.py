"""Checkpoints by name: the newest that is there, whatever was put in which order; and pruning respects it."""

import pytest
from checkpoints import claimed, manifest_of, save, some_state, written
from memory_storage import MemoryStorage

from outlast.errors import CheckpointError, ConfigError, UsageError
from outlast.protocol.trunk import Checkpoint
from outlast.state.storage.keys import is_key
from outlast.state.vault.finding import find_name, which_of
from outlast.state.vault.manifest import Manifest
from outlast.state.vault.names import ENDED, Era, check_name, manifest_name, pointer_name, pointer_of
from outlast.state.vault.pointers import names_of, pointers, targets
from outlast.state.vault.pruning import prune
from outlast.state.vault.retention import Keep
from outlast.state.vault.vault import Vault


@pytest.mark.parametrize("name", ["best", "Best_of-2.0", "A", "x_y", "x__Y", "7a"])
def test_a_name_and_a_checkpoint_make_a_key_and_can_be_told_from_it(name: str) -> None:
    assert check_name(name) == name
    key = pointer_name(name, Checkpoint(7, 1200))
    assert is_key(key)
    assert pointer_of(key) == (name, Checkpoint(7, 1200))


def test_names_that_differ_in_capitals_have_different_keys() -> None:
    names = ["best", "Best", "BEST", "best_", "bes_t", "besT"]
    assert len({pointer_name(name, Checkpoint(1, 1)) for name in names}) == len(set(names))


@pytest.mark.parametrize("name", ["", "12", "a/b", ".hidden", "-ended", "with space", "ü", "x" * 65, 3, None])
def test_what_cannot_be_a_name_is_refused_with_what_can(name: object) -> None:
    with pytest.raises(ConfigError, match="letters, digits"):
        check_name(name)


def filled() -> tuple[Vault, int]:
    vault = Vault(MemoryStorage())
    claim = claimed(vault)
    for step in range(10, 60, 10):
        save(vault, claim, step)
    return vault, claim.number


def prepared(vault: Vault, step: int, state: int, era: Era | None = None) -> Manifest:
    """All chunks are there, and the manifest is about to be put."""
    image, tensors = some_state(state)
    _, chunks = written(vault.storage, image, tensors, {}, era=era)
    return manifest_of(vault.read_claim(1), step, image, chunks)


def point(vault: Vault, name: str, step: int, claim: int = 1) -> None:
    vault.point(name, vault.read_manifest(manifest_name(claim, step)))


def test_the_newest_one_with_a_name_has_it() -> None:
    vault, _ = filled()
    point(vault, "best", 40)
    point(vault, "best", 20)
    assert targets(vault) == {"best": manifest_name(1, 40)}
    point(vault, "last", 40)
    assert names_of(vault) == {manifest_name(1, 40): ["best", "last"]}
    assert find_name(vault, "best") == manifest_name(1, 40)
    with pytest.raises(UsageError, match=r"no checkpoint 'bets'.*best, last"):
        find_name(vault, "bets")


def test_a_name_moves_on_with_the_manifest_and_not_before() -> None:
    vault, _ = filled()
    point(vault, "best", 20)
    manifest = prepared(vault, 60, 60)
    vault.point("best", manifest)
    assert targets(vault) == {"best": manifest_name(1, 20)}, "whoever dies here has changed nothing"
    vault.commit(manifest)
    assert targets(vault) == {"best": manifest_name(1, 60)}


def test_a_checkpoint_with_a_name_is_kept_until_the_name_moves_on() -> None:
    vault, claim = filled()
    point(vault, "best", 10)
    prune(vault, Keep(last=1), claim=claim)
    assert vault.manifests() == [manifest_name(1, 10), manifest_name(1, 50)]
    point(vault, "best", 50)
    prune(vault, Keep(last=1), claim=claim)
    assert vault.manifests() == [manifest_name(1, 50)]
    assert [checkpoint for _, checkpoint, _ in pointers(vault)] == [Checkpoint(1, 50)], "no rest is left"


def test_a_dry_run_says_so() -> None:
    vault, _ = filled()
    point(vault, "best", 10)
    pruned = prune(vault, Keep(last=1), claim=None, dry_run=True)
    assert manifest_name(1, 10) in pruned.kept


def test_a_pointer_that_is_ahead_of_its_checkpoint_survives_pruning() -> None:
    vault, claim = filled()
    point(vault, "best", 10)
    manifest = prepared(vault, 60, 60)
    vault.point("best", manifest)
    prune(vault, Keep(last=1), claim=claim)
    assert len(pointers(vault)) == 2
    vault.commit(manifest)
    assert targets(vault) == {"best": manifest_name(1, 60)}


def test_the_end_of_a_run_is_no_reason_to_keep_a_checkpoint() -> None:
    vault, claim = filled()
    point(vault, ENDED, 10)
    prune(vault, Keep(last=1), claim=claim)
    assert vault.manifests() == [manifest_name(1, 50)] and pointers(vault) == []


def test_what_a_run_went_back_behind_has_its_name_until_something_newer_has_it() -> None:
    vault, _ = filled()
    point(vault, "best", 20)
    point(vault, "best", 50)
    back = vault.make_claim(run="other", lineage=1, base=manifest_name(1, 30), goes_back=True)
    assert targets(vault) == {"best": manifest_name(1, 20)}, "on the trunk there is one"
    prune(vault, Keep(last=1), claim=back.number)
    assert targets(vault) == {"best": manifest_name(1, 20)}


def test_what_was_committed_before_in_other_chunks_is_taken_for_it() -> None:
    vault, _ = filled()
    there = vault.read_manifest(manifest_name(1, 50))
    again = prepared(vault, 50, 50, Era(1, 2, 3))
    assert {chunk.name for chunk in again.chunks}.isdisjoint(chunk.name for chunk in there.chunks)
    assert vault.ensure(again) == there
    with pytest.raises(CheckpointError, match="went back"):
        vault.ensure(prepared(vault, 50, 51))


@pytest.mark.parametrize(
    ("text", "which"), [("12", 12), (12, 12), ("newest", None), (None, None), ("b", "b")]
)
def test_a_number_is_a_step_and_a_word_a_name(text: str | int | None, which: object) -> None:
    assert which_of(text) == which
