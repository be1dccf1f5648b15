"""A quiet run keeps all promises; each way to break one is found, and named."""

from __future__ import annotations

from pathlib import Path

import pytest
from event_lines import line, said, stable, step, view

from outlast.observe.files import EventFile
from outlast.observe.promises import PROMISES, broken, check
from outlast.observe.written import Written
from outlast.protocol import events
from outlast.protocol.events import AnyEvent
from outlast.wire.rundir import RunDirectory

START = events.Restored(step=0, origin="beginning")
GIVEN = events.Restored(step=0, origin="members")


def coordinator(*told: AnyEvent, pid: int = 1) -> list[Written]:
    return [line("coordinator", event, pid=pid) for event in told]


def agent(*told: AnyEvent, pid: int = 1) -> list[Written]:
    return [line("agent-0", event, pid=pid) for event in told]


def end(state: str) -> events.Ended:
    return events.Ended(state=state, reason="a test")  # type: ignore[arg-type]


CLOSES = events.LifeOver(replica=0, incarnation=1, reason="it has finished", finished=True, closes=True)
DIED = events.Died(who="replica-1", incarnation=1, cause="was killed by SIGKILL")

QUIET = [
    line("launcher", events.Begun(run="job", replicas=2, shards=2)),
    *coordinator(events.Leading(term=1, view=0), view(1, 0, 1), view(2, 0), view(3, 0, learners=(2,))),
    *said(0, view(1, 0, 1), START, step(1), step(2), stable(1), view(2, 0), step(3, 2), stable(2, 2)),
    # This one was killed after it had completed step 3, which nobody heard of; so it was made again.
    *said(1, view(1, 0, 1), GIVEN, step(1), step(2), stable(1), step(3, loss=0.75)),
    *agent(DIED),
    *coordinator(
        events.Evicted(replica=0, incarnation=1, view=4, cause="replica 0 hangs"),
        view(4, 2),
        end("finished"),
    ),
    *agent(CLOSES),
    line("launcher", end("finished")),
]


def test_a_run_that_lost_a_replica_keeps_all_promises() -> None:
    assert broken(QUIET) == []


def test_records_may_be_held_before_the_state_that_they_follow_is_loaded() -> None:
    assert broken(said(1, step(1), step(2), GIVEN, step(3), stable(3))) == []


BREAKS = {
    "one_membership": [*coordinator(view(1, 0, 1)), *said(0, view(1, 0, 2))],
    "numbers_grow_by_one": coordinator(view(1, 0), view(3, 0)),
    "views_never_go_back": said(0, view(2, 0), view(1, 0)),
    "views_never_go_back: hold it": said(0, view(2, 1)),
    "no_eviction_without_a_cause": coordinator(events.Evicted(replica=0, incarnation=1, view=2, cause=" ")),
    "no_eviction_without_a_cause: out of it": coordinator(
        view(2, 0), events.Evicted(replica=0, incarnation=1, view=2, cause="replica 0 hangs")
    ),
    "finished_means_done": [*coordinator(end("finished")), *agent(DIED)],
    "ends_once": coordinator(end("failed"), end("failed")),
    "ends_once: agreed": [*coordinator(end("failed")), line("launcher", end("finished"))],
    "deaths_are_final": agent(DIED, events.Joined(replica=1, incarnation=1)),
    "steps_in_order": said(0, START, step(1), step(3)),
    "steps_in_order: once": said(0, START, step(1), step(1)),
    "attempts_in_own_views": [*coordinator(view(2, 0, learners=(1,))), *said(1, step(1, 2))],
    "attempts_in_own_views: older": said(0, step(1, 2), step(2, 1)),
    "one_record": [*said(0, step(1, loss=0.5)), *said(1, step(1, loss=0.5000000000000001))],
    "one_record: given": [*said(0, step(1, loss=0.5)), *said(1, step(1, loss=None, own=False))],
    "held_is_not_made_again": [
        *coordinator(view(1, 0, 1, 2), view(2, 0, 1)),
        *said(0, step(1, 1)),
        *said(1, step(1, 2)),
    ],
    "stable_is_kept": [
        *coordinator(view(1, 0, 1), view(2, 0, 2)),
        *said(1, step(1, 1), stable(1, 1)),
        *said(2, step(1, 2)),
    ],
    "stable_is_held": said(0, START, step(1), stable(2)),
    "over_is_over": said(0, step(1), events.LifeOver(replica=0, incarnation=1, reason="fenced"), step(2)),
}


@pytest.mark.parametrize("name", BREAKS)
def test_what_breaks_a_promise_is_found_by_that_one_alone(name: str) -> None:
    from outlast.observe.account import Account

    account = Account.of(BREAKS[name])
    found = {promise.__name__ for promise in PROMISES if list(promise(account))}
    assert found == {name.partition(":")[0]}


def test_each_promise_is_broken_by_something() -> None:
    assert {name.partition(":")[0] for name in BREAKS} == {promise.__name__ for promise in PROMISES}


MISSING = {
    "a killed coordinator has not written a view": [
        *coordinator(view(1, 0)),
        *coordinator(events.Leading(term=2, view=3), view(3, 0), pid=2),
    ],
    "a new leader begins with what it has read": coordinator(
        view(1, 0), events.Leading(term=2, view=1), view(1, 0)
    ),
    "an agent was killed before it had told of the chief": [
        *coordinator(end("finished")),
        *agent(DIED),
        *agent(DIED, pid=2),
    ],
    "its launcher has seen the agent die": [
        *coordinator(end("finished")),
        *agent(DIED),
        line("launcher", events.Died(who="agent-0", cause="was killed by SIGKILL")),
    ],
    "steps were dropped": [
        *said(0, START, step(1)),
        line("replica-0", step(5), incarnation=1, dropped=3),
        *said(0, stable(4)),
    ],
    "a life went back, and goes another way": said(
        0,
        START,
        step(1),
        step(2),
        events.WentBack(step=1, fork=1),
        events.Step(step=2, view=2, lineage=1, fork=1, loss=0.75),
    ),
    "who made a step has not written it": said(1, GIVEN, step(1, own=False)),
    "a new lineage begins again": [
        *said(0, START, step(1), step(2)),
        *said(0, START, events.Step(step=1, view=4, lineage=2, loss=0.75), life=2, pid=2),
    ],
    "a job was stopped": [*coordinator(end("finished")), *agent(CLOSES), line("launcher", end("stopped"))],
}


@pytest.mark.parametrize("name", MISSING)
def test_nobody_is_accused_when(name: str) -> None:
    assert broken(MISSING[name]) == []


def test_a_run_directory_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    assert check(path) == [], "a run that wrote no events has broken nothing"
    for source in {one.source for one in QUIET}:
        file = EventFile(RunDirectory(path), source)
        file.write([one for one in QUIET if one.source == source])
        file.close()
    assert check(path) == []
    file = EventFile(RunDirectory(path), "coordinator")
    file.write(coordinator(events.Evicted(replica=0, incarnation=1, view=9, cause="")))
    file.close()
    assert check(path) == ["coordinator (1): replica 0 is evicted, and nobody says why"]
