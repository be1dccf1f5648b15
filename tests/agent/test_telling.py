"""What an agent tells of its replicas: each thing once, with its cause."""

from __future__ import annotations

from outlast.agent.telling import ITS_AGENT_DIED, Telling
from outlast.protocol.events import AnyEvent, Died, Joined, LifeOver, Restarted, Started
from outlast.protocol.messages import Departure
from outlast.protocol.supervision import Sample


def test_a_life_is_told_from_its_start_to_its_end() -> None:
    told: list[AnyEvent] = []
    telling = Telling(told.append)
    telling.started(1, 101, 4711, again=False)
    for incarnation in (0, 1, 1, 0, 2):
        telling.sampled(1, Sample(incarnation=incarnation))
    gone = Departure(replica=1, process=101, how="was killed by SIGKILL", step=7)
    for _ in range(2):
        telling.departed([gone], leaving=False)
    telling.started(1, 102, 4712, again=True)
    telling.sampled(1, Sample(incarnation=3))
    finished = Departure(
        replica=1, process=102, how="has finished", finished=True, in_order=True, closes=True
    )
    telling.departed([gone, finished], leaving=False)
    assert told == [
        Started(who="replica-1", process=101, pid=4711),
        Joined(replica=1, incarnation=1, process=101, pid=4711),
        Joined(replica=1, incarnation=2, process=101, pid=4711),
        Died(who="replica-1", process=101, incarnation=2, cause="was killed by SIGKILL", step=7),
        Restarted(who="replica-1", process=102, pid=4712, cause="was killed by SIGKILL"),
        Joined(replica=1, incarnation=3, process=102, pid=4712),
        LifeOver(replica=1, incarnation=3, reason="it has finished", finished=True, closes=True),
    ]


def test_a_new_agent_knows_why_its_replicas_begin_again() -> None:
    told: list[AnyEvent] = []
    Telling(told.append).started(0, 201, 1, again=True)
    assert told == [Restarted(who="replica-0", process=201, pid=1, cause=ITS_AGENT_DIED)]


def test_who_is_asked_to_leave_has_not_died() -> None:
    told: list[AnyEvent] = []
    Telling(told.append).departed([Departure(replica=0, process=101, how="leaves")], leaving=True)
    assert told == [LifeOver(replica=0, incarnation=0, reason="it leaves")]
