"""What a lineage begins with: the newest good checkpoint, whatever happened to the others."""

import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from saved_states import (
    RUN,
    claim_for,
    commit,
    damage,
    dead,
    intent_of,
    remove_chunks,
    state_after,
    tiers_in,
)

from outlast.errors import NoCheckpoint, SaveGivenUp, StorageFull, VaultTaken
from outlast.protocol.roster import INTENTS_KEPT
from outlast.protocol.trunk import Checkpoint
from outlast.protocol.views import Intent
from outlast.state.vault.manifest import Claim, Manifest
from outlast.state.vault.names import manifest_name
from outlast.state.vault.occupancy import Beating, Process
from outlast.train.restoring import Beginning, find_beginning, is_trusted
from outlast.train.tiers import Tiers, shards_of_newest


def begin(tiers: Tiers, intents: Collection[Intent] = (), run: str = "the next run") -> Beginning:
    return find_beginning(tiers, run=run, lineage=2, intents=intents, process=dead())


def step_of(beginning: Beginning) -> int:
    """The step that it begins after, with the right state."""
    assert beginning.manifest is not None and beginning.state is not None
    for found, expected in zip(beginning.state.tensors(), state_after(beginning.manifest.step), strict=True):
        assert torch.equal(found, expected)
    return beginning.manifest.step


def test_an_empty_place_begins_from_nothing_under_a_claim(tmp_path: Path) -> None:
    beginning = begin(tiers_in(tmp_path / "new"))
    assert (beginning.manifest, beginning.state) == (None, None)
    assert (beginning.claim.number, beginning.claim.base) == (1, None)


def test_the_newest_one_is_taken_and_claimed(tmp_path: Path) -> None:
    tiers = tiers_in(tmp_path)
    claim = claim_for(tiers)
    for step in (5, 10):
        commit(tiers.first, claim, step)
    beginning = begin(tiers)
    assert step_of(beginning) == 10
    assert beginning.claim.base == manifest_name(1, 10) and beginning.claim.number == 2
    assert shards_of_newest(tiers) == 4


@pytest.mark.parametrize("hurt", [damage, remove_chunks])
def test_a_damaged_one_is_named_and_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, hurt: object
) -> None:
    tiers = tiers_in(tmp_path)
    claim = claim_for(tiers)
    commit(tiers.first, claim, 5)
    hurt(tmp_path, commit(tiers.first, claim, 10))  # type: ignore[operator]
    with caplog.at_level(logging.WARNING):
        beginning = begin(tiers)
    assert step_of(beginning) == 5 and beginning.claim.base == manifest_name(1, 5)
    assert "the checkpoint of step 10 is passed over" in caplog.text


def test_a_manifest_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    tiers = tiers_in(tmp_path)
    claim = claim_for(tiers)
    for step in (5, 10):
        commit(tiers.first, claim, step)
    path = tmp_path / manifest_name(1, 10)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-20])
    assert step_of(begin(tiers)) == 5


def test_where_there_are_some_and_none_is_good_nothing_begins(tmp_path: Path) -> None:
    tiers = tiers_in(tmp_path)
    manifest = commit(tiers.first, claim_for(tiers), 5)
    damage(tmp_path, manifest)
    with pytest.raises(NoCheckpoint, match=r"none of them can be loaded: step 5: .*damaged"):
        begin(tiers)
    assert tiers.first.newest_claim() == 1, "nobody was superseded for that"


def trusted(manifest: Manifest, *intents: Intent, run: str = RUN) -> bool:
    return is_trusted(manifest, run, intents)


def test_of_its_own_run_only_what_the_coordinator_allowed_is_trusted(tmp_path: Path) -> None:
    tiers = tiers_in(tmp_path)
    claim = claim_for(tiers)
    first, second = commit(tiers.first, claim, 5), commit(tiers.first, claim, 10)
    assert trusted(first, intent_of(first)) and not trusted(second, intent_of(first))
    assert not trusted(second, Intent(step=10, lineage=1, seal="another"))
    assert trusted(second, run="another run"), "of other runs nothing is known here"
    assert step_of(begin(tiers, [intent_of(first)], run=RUN)) == 5
    many = [Intent(step=step, lineage=2, seal="s") for step in range(INTENTS_KEPT)]
    assert trusted(first, *many) and not trusted(first, *many[1:]), "only the newest are remembered"


def test_what_is_committed_while_the_claim_is_made_is_found_by_a_second_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tiers = tiers_in(tmp_path)
    old = claim_for(tiers)
    commit(tiers.first, old, 5)
    makes = Tiers.claim
    late = [10]

    def claim(self: Tiers, **given: object) -> object:
        if late:
            commit(self.first, old, late.pop())
        return makes(self, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(Tiers, "claim", claim)
    with caplog.at_level(logging.WARNING):
        beginning = begin(tiers)
    assert step_of(beginning) == 10 and beginning.claim.number == 3
    assert "looking again" in caplog.text


def test_who_may_not_claim_any_more_claims_nothing(tmp_path: Path) -> None:
    tiers = tiers_in(tmp_path)
    commit(tiers.first, claim_for(tiers), 5)
    with pytest.raises(SaveGivenUp):
        find_beginning(tiers, run="next", lineage=2, intents=(), process=dead(), may_claim=lambda: None)
    assert tiers.first.newest_claim() == 1


def test_a_full_storage_is_waited_for_as_long_as_it_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiers = tiers_in(tmp_path)
    commit(tiers.first, claim_for(tiers), 5)
    make_claim, answers = Tiers.claim, [True, True]

    def claim(self: Tiers, **more: Any) -> Claim:
        if answers:
            raise StorageFull("no space left")
        return make_claim(self, **more)

    def begin_anew(awaits_room: Callable[[], bool]) -> Beginning:
        return find_beginning(
            tiers, run="next", lineage=2, intents=(), process=dead(), awaits_room=awaits_room
        )

    monkeypatch.setattr(Tiers, "claim", claim)
    with pytest.raises(StorageFull):
        begin_anew(lambda: False)
    assert step_of(begin_anew(answers.pop)) == 5 and not answers


def test_what_a_founder_hid_that_died_before_its_second_look_is_found(tmp_path: Path) -> None:
    tiers = tiers_in(tmp_path)
    old = claim_for(tiers)
    commit(tiers.first, old, 5)
    path = tmp_path / manifest_name(1, 10)
    commit(tiers.first, old, 10)
    hidden = path.read_bytes()
    path.unlink()
    claim_for(tiers, base=Checkpoint(1, 5), lineage=2)
    path.write_bytes(hidden)
    assert step_of(begin(tiers)) == 10


def test_one_that_was_too_late_with_its_claim_makes_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiers = tiers_in(tmp_path)
    commit(tiers.first, claim_for(tiers), 5)
    views = [3, 9]

    def may_claim() -> int:
        if len(views) == 2:
            # While this replica is stopped, another is made the founder, and it is on this one again later.
            tiers.claim(run="next", lineage=2, view=7, base=Checkpoint(1, 5), process=dead())
        return views.pop(0)

    with caplog.at_level(logging.WARNING):
        found = find_beginning(tiers, run="next", lineage=2, intents=(), process=dead(), may_claim=may_claim)
    assert step_of(found) == 5 and (found.claim.number, found.claim.view) == (4, 9)
    assert "too late" in caplog.text


def test_who_may_not_begin_any_more_begins_nothing(tmp_path: Path) -> None:
    """Its claim stays, and hides nothing."""
    tiers = tiers_in(tmp_path)
    commit(tiers.first, claim_for(tiers), 5)
    asked: list[int] = []

    def may_begin(claim: Claim) -> bool:
        asked.append(claim.number)
        return False

    with pytest.raises(SaveGivenUp, match="is over"):
        find_beginning(tiers, run="next", lineage=2, intents=(), process=dead(), may_begin=may_begin)
    assert asked == [2], "it was asked after the second look"
    assert step_of(begin(tiers)) == 5


def test_what_came_late_is_gone_on_from_by_another_run_only(tmp_path: Path) -> None:
    """Somebody began without it under claim 2, and died before it saved anything."""
    tiers = tiers_in(tmp_path)
    old = claim_for(tiers)
    commit(tiers.first, old, 5)
    path = tmp_path / manifest_name(1, 10)
    commit(tiers.first, old, 10)
    late = path.read_bytes()
    path.unlink()
    begun = claim_for(tiers, base=Checkpoint(1, 5), lineage=2)
    path.write_bytes(late)

    def again(founded: int) -> Beginning:
        return find_beginning(
            tiers, run="next", lineage=3, intents=(), process=dead(), founded=lambda: founded
        )

    assert step_of(again(begun.number)) == 5
    assert step_of(again(0)) == 10, "whose coordinator knows nothing of that, has the storage alone"


def test_a_run_that_lives_is_not_superseded_by_another(tmp_path: Path) -> None:
    tiers = tiers_in(tmp_path)
    claim = tiers.claim(run=RUN, lineage=1, base=None, process=Process.own())
    with Beating(tiers.first.storage, claim), pytest.raises(VaultTaken, match=RUN):
        begin(tiers)


def test_several_places_are_one_history(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    tiers = tiers_in(near, far)
    claim = claim_for(tiers)
    manifests = [commit(tiers.first, claim, step) for step in (5, 10)]
    for manifest in manifests:
        tiers.replicate(manifest, tiers.vaults[1], lambda: True)
    damage(near, manifests[1])
    beginning = begin(tiers)
    assert step_of(beginning) == 10, "the far copy is whole"
    assert [vault.newest_claim() for vault in tiers.vaults] == [2, 2], "a claim is made everywhere"
    alone = tiers_in(far)
    assert list(alone.trunk()) == [Checkpoint(1, 10), Checkpoint(1, 5)]


def test_a_place_that_is_new_or_behind_takes_part(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    only_far = tiers_in(far)
    claim = claim_for(only_far)
    commit(only_far.first, claim, 5)
    tiers = tiers_in(near, far)
    beginning = begin(tiers)
    assert step_of(beginning) == 5 and beginning.claim.number == 2
    assert begin(tiers).claim.number == 3


def test_a_run_that_lives_in_another_place_is_not_superseded(tmp_path: Path) -> None:
    only_far = tiers_in(tmp_path / "far")
    only_far.claim(run="another", lineage=1, base=None, process=Process.own())
    with pytest.raises(VaultTaken, match="another"):
        begin(tiers_in(tmp_path / "near", tmp_path / "far"))


def test_copying_to_another_place_stops_when_it_is_not_wanted(tmp_path: Path) -> None:
    tiers = tiers_in(tmp_path / "near", tmp_path / "far")
    manifest = commit(tiers.first, claim_for(tiers), 5)
    with pytest.raises(SaveGivenUp):
        tiers.replicate(manifest, tiers.vaults[1], lambda: False)
    assert tiers.vaults[1].manifests() == []


def test_a_place_that_another_job_uses_is_told_apart(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    tiers = tiers_in(near, far)
    claims_newest = tiers.vaults[1].newest_claim

    def another_is_quicker() -> int:
        newest = claims_newest()
        claim_for(tiers_in(far), run="a stranger")
        return newest

    tiers.vaults[1].newest_claim = another_is_quicker  # type: ignore[method-assign]
    with pytest.raises(VaultTaken, match="Another job seems to use one of the two"):
        begin(tiers)
