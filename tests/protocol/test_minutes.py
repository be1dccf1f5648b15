"""What was decided, read off from two documents."""

from __future__ import annotations

from msgspec.structs import replace

from outlast.protocol import events
from outlast.protocol.minutes import CAUSE_LOST, minutes
from outlast.protocol.views import Charge, JobSpec, Member, Membership, Outcome, Seat, Standing, View

SPEC = JobSpec(name="job", replicas=3, shards=3)


def document(number: int, standings: str, **more: object) -> Membership:
    """`standings`: a letter for each replica, m(ember), l(earner), e(victed) or g(one)."""
    names = {"m": Standing.MEMBER, "l": Standing.LEARNER, "e": Standing.EVICTED, "g": Standing.GONE}
    seats = {
        replica: Seat(replica=replica, standing=names[letter], incarnation=1)
        for replica, letter in enumerate(standings)
    }
    view = View(
        number=number,
        lineage=1,
        members=tuple(Member(r, 1) for r, letter in enumerate(standings) if letter == "m"),
        learners=tuple(Member(r, 1) for r, letter in enumerate(standings) if letter == "l"),
        planned_since=number,
        cause=f"why {number}",
    )
    return Membership(spec=SPEC, view=view, seats=seats, **more)  # type: ignore[arg-type]


def test_a_view_is_told_with_its_lives_and_its_cause() -> None:
    before, after = document(1, "mm"), document(2, "mg")
    assert list(minutes(before, after, {})) == [
        events.View(number=2, lineage=1, members=(events.Life(0, 1),), planned_since=2, cause="why 2")
    ]
    assert list(minutes(after, after, {})) == []


def test_an_eviction_is_told_with_its_cause_and_its_evidence() -> None:
    before, after = document(1, "mm"), document(2, "me")
    told = list(minutes(before, after, {1: "replica 1 hangs"}))[1]
    assert told == events.Evicted(
        replica=1, incarnation=1, view=2, cause="replica 1 hangs", evidence="suspicion"
    )

    def evidence(**changes: object) -> str:
        seats = {**after.seats, 1: replace(after.seats[1], **changes)}
        _, one = minutes(before, replace(after, seats=seats), {})
        assert isinstance(one, events.Evicted)
        assert one.cause == "why 2", "a document that was read again comes without causes"
        return one.evidence

    assert evidence(failing=True) == "own_word"
    assert evidence(left_in=2) == "leaving"
    charge = Charge(view=1, step=7, reason="other bits", replica=1, incarnation=1)
    (_, charged) = minutes(before, replace(after, charges=(charge,)), {1: "other bits"})
    assert isinstance(charged, events.Evicted)
    assert charged.evidence == "charge"


def test_who_is_taken_out_before_anybody_trains_has_a_cause_too() -> None:
    before, after = document(0, "ll"), document(0, "le")
    bare = replace(after, view=View())
    assert [e.cause for e in minutes(before, bare, {1: "it is silent"}) if isinstance(e, events.Evicted)] == [
        "it is silent"
    ]
    (told,) = minutes(before, bare, {})
    assert isinstance(told, events.Evicted)
    assert told.cause == CAUSE_LOST
    assert told.view == 1, "the newest one is as it was, and may still name it"


def test_a_learner_that_has_caught_up_is_promoted_but_not_those_who_begin() -> None:
    promoted = events.Promoted(replica=1, incarnation=1, view=2)
    assert promoted in minutes(document(1, "ml"), document(2, "mm"), {})
    gathering = replace(document(0, "ll"), view=View())
    assert [type(event) for event in minutes(gathering, document(1, "mm"), {})] == [events.View]


def test_a_standstill_and_the_end_are_told() -> None:
    before, after = document(1, "mm"), document(2, "mm")
    still = replace(after, view=replace(after.view, renews=True))
    assert next(minutes(before, still, {})) == events.Standstill(view=2, cause="why 2")
    outcome = Outcome(finished=False, reason="no luck", replica=1)
    (ended,) = minutes(before, replace(before, outcome=outcome), {})
    assert ended == events.Ended(state="failed", reason="no luck", replica=1)
    assert list(minutes(replace(before, outcome=outcome), replace(before, outcome=outcome), {})) == []
