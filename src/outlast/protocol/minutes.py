"""What was decided between two agreed documents, as events: the coordinator's minutes.

The document says how things stand and not how they came to be, so what happened is read off from what
differs. Only the causes of removals are not in it (a view has them in one sentence, and where nobody trains
yet there is no new view): the coordinator's core keeps those of its newest commit beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from outlast.protocol import events
from outlast.protocol.views import Membership, Seat, Standing

CAUSE_LOST = "the answer to the write that says why was lost"


def minutes(before: Membership, after: Membership, causes: Mapping[int, str]) -> Iterator[events.AnyEvent]:
    """`causes`: replica → why it was removed. A document that was read again comes without."""
    view = after.view
    if view.number > before.view.number:
        if view.renews:
            yield events.Standstill(view=view.number, cause=view.cause)
        yield events.View.of(view)
    for replica, seat in sorted(after.seats.items()):
        old = before.seats.get(replica)
        if old is None or old.incarnation != seat.incarnation or old.standing is seat.standing:
            continue
        if seat.standing is Standing.EVICTED and old.present:
            # While nobody trains, no view is made for who goes, and the newest one may still name it.
            without = view.number if view.number > before.view.number else view.number + 1
            yield _evicted(seat, after, without, causes.get(replica, view.cause or CAUSE_LOST))
        elif seat.standing is Standing.MEMBER and view.lineage == before.view.lineage:
            yield events.Promoted(replica=replica, incarnation=seat.incarnation, view=view.number)
    outcome = after.outcome
    if outcome is not None and before.outcome is None:
        yield events.Ended(
            state="finished" if outcome.finished else "failed",
            reason=outcome.reason,
            replica=outcome.replica,
        )


def _evicted(seat: Seat, after: Membership, view: int, cause: str) -> events.Evicted:
    evidence: events.Evidence = "suspicion"
    if any(charge.life == (seat.replica, seat.incarnation) for charge in after.charges):
        evidence = "charge"
    elif seat.failing:
        evidence = "own_word"
    elif seat.left_in == view:
        evidence = "leaving"
    return events.Evicted(
        replica=seat.replica, incarnation=seat.incarnation, view=view, cause=cause, evidence=evidence
    )
