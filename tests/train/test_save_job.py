"""When one save has waited too long: for the coordinator's leave, and for the others at the end of a run."""

from typing import cast

from outlast.protocol.saving import Save
from outlast.state.vault.manifest import Manifest
from outlast.train.save_job import INTENT_WITHIN_S, OTHERS_SLOWER, OTHERS_WITHIN_S, SaveJob

MANIFEST = cast(Manifest, object())


def job() -> SaveJob:
    found = SaveJob(Save(step=7, lineage=1, view=2, writers=(0, 1)), 1)
    found.began_at = 100.0
    return found


def test_the_coordinator_may_be_away_for_a_while() -> None:
    one = job()
    one.intended_at, one.manifest = 110.0, MANIFEST
    assert one.overdue(110.0 + INTENT_WITHIN_S, None) == ""
    assert "coordinator" in one.overdue(111.0 + INTENT_WITHIN_S, None)


def test_a_commit_that_is_under_way_is_not_given_up() -> None:
    one = job()
    one.intended_at, one.manifest, one.committing = 110.0, MANIFEST, True
    assert one.overdue(1e9, 100.0) == ""


def test_while_steps_go_on_nobody_tires_of_the_others() -> None:
    one = job()
    one.written_at = 110.0
    assert one.overdue(1e9, None) == ""


def test_at_the_end_of_a_run_one_waits_for_the_others_but_not_for_ever() -> None:
    one = job()
    one.written_at = 110.0
    assert one.overdue(120.0 + OTHERS_WITHIN_S, 120.0) == ""
    assert "replica 1" in one.overdue(121.0 + OTHERS_WITHIN_S, 120.0)


def test_whose_own_share_took_long_waits_the_longer() -> None:
    one = job()
    one.written_at = one.began_at + OTHERS_WITHIN_S
    patience_s = OTHERS_SLOWER * OTHERS_WITHIN_S
    assert one.overdue(one.written_at + patience_s, 0.0) == ""
    assert one.overdue(one.written_at + patience_s + 1.0, 0.0) != ""


def test_what_is_given_up_is_cancelled() -> None:
    one = job()
    one.give_up("no matter why")
    assert one.cancelled.is_set()
