"""Events in words: every kind has some, and what a person must know is a warning."""

from __future__ import annotations

import logging
from typing import get_args

import pytest
from event_lines import line, step, view

from outlast.observe.logs import LogSink
from outlast.observe.sentences import level, sentence
from outlast.observe.written import Unknown
from outlast.protocol import events
from outlast.protocol.events import AnyEvent

SOME: dict[AnyEvent | Unknown, str] = {
    events.Begun(run="job", replicas=3, shards=4): "the run job begins with 3 replicas and 4 shards",
    events.Started(who="replica-1", pid=77): "replica-1 is started as process 77",
    events.Restarted(who="agent-0", cause="was killed by SIGKILL"): (
        "agent-0 is started again: the one before was killed by SIGKILL"
    ),
    events.Died(who="replica-1", cause="exited with status 1"): "replica-1 died: it exited with status 1",
    events.Joined(replica=1, incarnation=2): "replica 1 takes part in its life 2",
    events.LifeOver(replica=1, incarnation=2, reason="it has finished"): (
        "replica 1: its life 2 is over, it has finished"
    ),
    view(3, 0, 1, learners=(2,)): "view 3: members 0.1,1.1, learning 2.1 (a test)",
    events.Evicted(replica=1, incarnation=2, view=4, cause="replica 1 hangs"): (
        "replica 1 is out from view 4 on (replica 1 hangs)"
    ),
    events.Promoted(replica=1, incarnation=2, view=4): (
        "replica 1 has caught up, and is a member from view 4 on"
    ),
    events.Standstill(view=4, cause="why"): (
        "all waited for each other, so view 4 begins the step again (why)"
    ),
    events.Leading(term=9, view=4): "this coordinator decides from here on; the newest view is 4",
    step(7, 3, 0.25): "step 7 is done in view 3, loss 0.25",
    events.Stable(step=7, view=3): "step 7 is stable in view 3",
    events.Screened(step=7, view=3, left_out=(1, 2), reason="not finite"): (
        "step 7 was doubted: shards 1, 2 are left out (not finite)"
    ),
    events.WentBack(
        step=5, fork=3
    ): "back to the state after step 5: the states of members differed (view 3)",
    events.Saved(stage="given_up", step=5, name="best", reason="a writer is gone"): (
        "the checkpoint of step 5 (best) is given up: a writer is gone"
    ),
    events.Restored(step=5, origin="members"): "the state after step 5: given by members",
    events.ConnectionLost(peer=2, cause="reset"): "the connection to replica 2 broke: reset",
    events.Ended(state="failed", reason="no luck"): "the job is over: failed (no luck)",
    Unknown(what="daydream"): "daydream, which this version of Outlast does not know",
}


@pytest.mark.parametrize("event", SOME, ids=lambda event: type(event).__name__)
def test_an_event_is_a_sentence(event: AnyEvent) -> None:
    assert sentence(event) == SOME[event]


def test_every_kind_has_one() -> None:
    assert {type(event) for event in SOME} == {*get_args(events.AnyEvent), Unknown}


def test_the_log_has_what_it_listens_to(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("outlast.test")
    caplog.set_level(logging.INFO, "outlast.test")
    died = events.Died(who="replica-1", cause="exited with status 1")
    LogSink(log).write([line("x", step(1)), line("x", view(1, 0)), line("x", died, dropped=3)])
    assert [(one.levelno, one.getMessage()) for one in caplog.records] == [
        (logging.INFO, "view 1: members 0.1 (a test)"),
        (logging.WARNING, "3 events are left out here"),
        (logging.WARNING, "replica-1 died: it exited with status 1"),
    ]
    assert level(step(1)) == logging.DEBUG
