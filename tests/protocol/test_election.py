"""The store decides who leads; a coordinator only asks, renews, watches and resigns."""

import pytest

from outlast.protocol.election import (
    Campaign,
    Campaigned,
    CampaignFailed,
    Election,
    Office,
    Renew,
    Renewed,
    RenewFailed,
    Watch,
    WatchBroken,
    WatchProgress,
)
from outlast.protocol.timing import Timing

TIMING = Timing()


def leading(asked_at: float = 0.0, answered_at: float = 0.0) -> Election:
    election = Election(TIMING)
    election.start(asked_at)
    election.handle(Campaigned(True, term=7, revision=7), answered_at)
    assert election.office is Office.LEADING
    return election


def following(seen: int = 7) -> Election:
    election = Election(TIMING)
    election.start(0.0)
    election.handle(Campaigned(False, term=0, revision=seen), 0.0)
    assert election.office is Office.FOLLOWING
    return election


def ticks_until_it_acts(
    election: Election, start: float, within_s: float = 10.0
) -> tuple[float, list[object]]:
    """When, and how, the passing of time alone makes it act."""
    for n in range(int(within_s / TIMING.tick_every_s)):
        now = start + n * TIMING.tick_every_s
        actions = election.tick(now)
        if actions:
            return now, list(actions)
    raise AssertionError("nothing happened")


def test_it_campaigns_when_it_starts() -> None:
    assert Election(TIMING).start(0.0) == [Campaign()]


def test_winning_makes_it_lead_under_the_revision_of_its_key() -> None:
    election = leading()
    assert election.term == 7
    assert election.tick(0.05) == []


def test_losing_makes_it_watch_from_the_revision_at_which_it_lost() -> None:
    election = Election(TIMING)
    election.start(0.0)
    assert election.handle(Campaigned(False, term=0, revision=41), 0.0) == [Watch(41)]
    assert election.office is Office.FOLLOWING


def test_it_campaigns_once_the_leader_is_gone() -> None:
    election = following()
    assert election.handle(WatchProgress(9, gone=False), 1.0) == []
    assert election.handle(WatchProgress(10, gone=True), 2.0) == [Campaign()]
    assert election.office is Office.CAMPAIGNING


def test_a_broken_watch_resumes_from_the_last_revision_seen_and_not_from_now() -> None:
    election = following(seen=41)
    assert rewatched(election, 1.0) == [Watch(41)]
    election.handle(WatchProgress(50, gone=False), 2.0)
    assert rewatched(election, 3.0) == [Watch(50)]


def rewatched(election: Election, now: float) -> list[object]:
    """What follows a broken watch; not at once, since a store that breaks it may go on doing so."""
    assert election.handle(WatchBroken(), now) == []
    again_at, actions = ticks_until_it_acts(election, now)
    assert again_at > now
    return actions


def test_progress_that_arrives_late_does_not_move_the_watch_back() -> None:
    election = following(seen=41)
    election.handle(WatchProgress(50, gone=False), 2.0)
    election.handle(WatchProgress(45, gone=False), 2.1)
    assert rewatched(election, 3.0) == [Watch(50)]


def test_a_campaign_that_gets_no_answer_is_repeated_after_a_beat() -> None:
    election = Election(TIMING)
    election.start(0.0)
    election.handle(CampaignFailed(), 1.0)
    again_at, actions = ticks_until_it_acts(election, 1.0)
    assert actions == [Campaign()]
    assert again_at == pytest.approx(1.0 + TIMING.beat_every_s)
    assert election.tick(again_at + 5.0) == [], "one question at a time"


def test_a_leader_does_not_act_on_watches_or_answers_of_earlier_campaigns() -> None:
    election = leading()
    assert election.handle(WatchProgress(99, gone=True), 0.1) == []
    assert election.handle(WatchBroken(), 0.1) == []
    assert election.handle(Campaigned(False, term=0, revision=99), 0.1) == []
    assert (election.office, election.term) == (Office.LEADING, 7)


def test_a_leader_renews_with_most_of_its_lease_still_ahead() -> None:
    renew_at, actions = ticks_until_it_acts(leading(), 0.0)
    assert actions == [Renew()]
    assert renew_at < TIMING.lease_s / 2


def test_only_one_renewal_is_under_way_at_a_time() -> None:
    election = leading()
    renew_at, _ = ticks_until_it_acts(election, 0.0)
    assert election.tick(renew_at + TIMING.tick_every_s) == []


def test_a_lost_renewal_is_repeated_at_once() -> None:
    election = leading()
    renew_at, _ = ticks_until_it_acts(election, 0.0)
    election.handle(RenewFailed(), renew_at + 0.5)
    assert election.tick(renew_at + 0.5) == [Renew()]


def test_a_leader_that_keeps_renewing_leads_for_ever() -> None:
    election = leading()
    now = 0.0
    for _ in range(50):
        now, actions = ticks_until_it_acts(election, now)
        assert actions == [Renew()]
        election.handle(Renewed(alive=True), now + 0.02)
    assert now > 5 * TIMING.lease_s
    assert election.office is Office.LEADING


def test_the_lease_counts_from_the_question_and_not_from_the_answer() -> None:
    election = leading(asked_at=0.0, answered_at=1.0)
    election.tick(1.0)
    assert election.tick(TIMING.lease_s - 0.01) == []
    assert election.tick(TIMING.lease_s) == [Campaign()]


def test_a_renewed_lease_counts_from_the_question_too() -> None:
    election = leading()
    assert election.tick(1.0) == [Renew()]
    election.handle(Renewed(alive=True), 1.5)
    # The next renewal is asked for, but never answered.
    assert election.tick(2.0) == [Renew()]
    assert election.tick(1.0 + TIMING.lease_s - 0.01) == []
    assert election.tick(1.0 + TIMING.lease_s) == [Campaign()]


def test_a_leader_whose_renewals_all_get_lost_resigns_when_its_lease_has_run_out() -> None:
    election = leading()
    for tick in range(1, 100):
        now = tick * TIMING.tick_every_s
        actions = election.tick(now)
        if actions == [Renew()]:
            election.handle(RenewFailed(), now)
        if actions == [Campaign()]:
            break
    assert now == pytest.approx(TIMING.lease_s)
    assert election.office is Office.CAMPAIGNING


def test_a_leader_that_learns_of_its_lost_lease_resigns_at_its_next_tick() -> None:
    election = leading()
    renew_at, _ = ticks_until_it_acts(election, 0.0)
    election.handle(Renewed(alive=False), renew_at)
    assert election.tick(renew_at) == [Campaign()]


def test_an_answer_to_a_renewal_of_an_earlier_tenure_prolongs_nothing() -> None:
    election = leading()
    renew_at, _ = ticks_until_it_acts(election, 0.0)
    election.resign(renew_at)
    election.handle(Campaigned(True, term=12, revision=12), renew_at)
    election.handle(Renewed(alive=False), renew_at)
    assert election.tick(renew_at) == [], "the new lease is as good as it was"
    assert election.term == 12


def test_what_an_old_watch_tells_late_is_no_leader_to_send_others_to() -> None:
    """They would be sent round in circles (simulator, seed 2637)."""
    election = Election(TIMING)
    election.start(0.0)
    election.handle(Campaigned(False, 0, 6, "newest"), 0.1)
    election.handle(WatchProgress(4, False, "oldest"), 0.2)
    assert election.leader == "newest"
    election.handle(WatchProgress(8, False, "next"), 0.3)
    assert election.leader == "next"
