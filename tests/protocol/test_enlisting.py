"""An agent is taken on before it starts anything, runs what is in its care, and no more than that."""

from outlast.protocol.coordinator import (
    Action,
    Commit,
    Committed,
    CoordinatorCore,
    Loaded,
    Received,
    Send,
    Tick,
)
from outlast.protocol.election import Campaigned, Renew, Renewed
from outlast.protocol.messages import Beat, BeatAck, Declined, Enlist, Enlisted, Message
from outlast.protocol.restarts import RestartPolicy
from outlast.protocol.supervision import (
    AgentAction,
    AgentCore,
    Exit,
    KillReplica,
    NotTakenOn,
    Sample,
    StartReplica,
    TellCoordinator,
)
from outlast.protocol.timing import Timing
from outlast.protocol.views import JobSpec, boot_of

TIMING = Timing()
TERM = 5
SPEC = JobSpec(name="job", replicas=4, shards=4, per_machine=2)
KILLED = Exit(how="was killed", killed=True)


def agent(name: str = "a", start: str = "1") -> AgentCore:
    enlist = Enlist(agent=name, start=f"{name}/{start}", home=f"home of {name}", room=2)
    return AgentCore(agent=name, boot=0, replicas=(), timing=TIMING, policy=RestartPolicy(), enlist=enlist)


def enlisted(boot: int = 7, **places: int) -> AgentCore:
    """An agent that was taken on, and has the replicas `r0`, `r1` and so on in its care."""
    core = agent()
    core.start(0.0)
    core.received(Enlisted(start="a/1", boot=boot), 0.0)
    core.received(ack(1, **places), 0.0)
    return core


def ack(number: int, **places: int) -> BeatAck:
    listed = tuple((int(name[1:]), place) for name, place in places.items())
    return BeatAck(number=number, view=0, places=listed)


def told(actions: list[AgentAction]) -> list[Message]:
    return [action.message for action in actions if isinstance(action, TellCoordinator)]


def started(actions: list[AgentAction]) -> dict[int, int]:
    return {a.replica: a.process for a in actions if isinstance(a, StartReplica)}


def killed(actions: list[AgentAction]) -> list[int]:
    return [action.replica for action in actions if isinstance(action, KillReplica)]


def test_nothing_is_started_before_the_leader_has_answered() -> None:
    core = agent()
    (first,) = told(core.start(0.0))
    assert isinstance(first, Enlist)
    assert told(core.tick(1.0)) == [first], "it asks again"
    (beat,) = told(core.received(Enlisted(start="a/1", boot=7), 1.1))
    assert isinstance(beat, Beat) and beat.boot == 7


def test_an_answer_to_another_start_is_not_ours() -> None:
    core = agent()
    core.start(0.0)
    assert core.received(Enlisted(start="a/0", boot=3), 0.0) == []
    assert isinstance(told(core.beat(0.1))[0], Enlist)


def test_what_is_in_its_care_is_started_under_the_newer_of_both_numbers() -> None:
    core = agent()
    core.start(0.0)
    core.received(Enlisted(start="a/1", boot=7), 0.0)
    processes = started(core.received(ack(1, r0=5, r3=9), 0.0))
    assert {replica: boot_of(process) for replica, process in processes.items()} == {0: 7, 3: 9}
    assert core.received(ack(2, r0=5, r3=9), 0.1) == []


def test_what_is_not_in_its_care_any_more_is_ended_and_not_started_again() -> None:
    core = enlisted(r0=5, r1=6)
    assert killed(core.received(ack(2, r1=6), 1.0)) == [0]
    core.exited(0, core.living()[0], KILLED, 1.1)
    assert started(core.tick(100.0)) == {}
    assert list(core.living()) == [1]


def test_what_comes_back_while_its_old_life_ends_is_started_after_that() -> None:
    core = enlisted(r0=8)
    old = core.living()[0]
    core.received(ack(2), 1.0)
    assert started(core.received(ack(3, r0=12), 1.1)) == {}
    core.exited(0, old, KILLED, 1.2)
    (new,) = started(core.tick(1.3)).values()
    assert boot_of(new) == 12 and new > old


def test_an_answer_that_was_overtaken_ends_nothing() -> None:
    core = enlisted(r0=5)
    core.received(ack(3, r0=5, r1=6), 1.0)
    assert killed(core.received(ack(2, r0=5), 1.1)) == []
    assert sorted(core.living()) == [0, 1]


def test_one_that_leaves_takes_nothing_on() -> None:
    core = enlisted(r0=5)
    core.preempted(1.0)
    assert started(core.received(ack(2, r0=5, r1=6), 1.1)) == {}


def test_one_that_is_declined_has_no_part() -> None:
    core = agent()
    core.start(0.0)
    assert core.received(Declined(start="b/1", reason="no"), 0.0) == []
    assert core.received(Declined(start="a/1", reason="no"), 0.0) == [NotTakenOn("no")]


def test_one_whose_place_another_has_taken_hears_so_at_its_next_beat() -> None:
    core = enlisted(boot=7)
    assert core.received(Declined(boot=6, reason="no"), 1.0) == []
    assert core.received(Declined(boot=7, reason="no"), 1.0) == [NotTakenOn("no")]


def test_the_last_exit_under_an_agent_before_is_judged_once_it_is_known_what_is_in_its_care() -> None:
    core = agent()
    done = Sample(joined=True, incarnation=1, closes=True)
    core.start(0.0, {0: (done, KILLED), 1: (done, KILLED)})
    core.received(Enlisted(start="a/1", boot=7), 0.0)
    actions = core.received(ack(1, r0=5), 0.0)
    (beat,) = told(actions)
    assert isinstance(beat, Beat)
    assert [departure.replica for departure in beat.departures] == [0]


# The leader's side.


def leading() -> CoordinatorCore:
    core = CoordinatorCore(SPEC, TIMING)
    core.start(0.0)
    core.handle(Campaigned(True, TERM, TERM), 0.0)
    core.handle(Loaded(None, 0, TERM), 0.0)
    return core


def asks(name: str, start: str = "1", home: str = "") -> Received:
    enlist = Enlist(agent=name, start=f"{name}/{start}", home=home or f"home of {name}", room=2)
    return Received(f"{name}/{start}", enlist)


def beats(name: str, boot: int, number: int) -> Received:
    return Received(name, Beat(agent=name, boot=boot, number=number))


def agreed(core: CoordinatorCore, actions: list[Action], now: float) -> list[Action]:
    (commit,) = [action for action in actions if isinstance(action, Commit)]
    return core.handle(Committed(commit.ticket, commit.ticket + 10), now)


def said(actions: list[Action]) -> list[Message]:
    return [action.message for action in actions if isinstance(action, Send)]


def taken_on(core: CoordinatorCore, name: str, now: float = 0.0, **more: str) -> int:
    (answer,) = said(agreed(core, core.handle(asks(name, **more), now), now))
    assert isinstance(answer, Enlisted)
    return answer.boot


def test_an_agent_is_told_its_number_only_when_it_is_agreed_on_and_its_care_with_every_beat() -> None:
    core = leading()
    assert said(core.handle(asks("a"), 0.0)) == []
    core = leading()
    boot = taken_on(core, "a")
    assert said(core.handle(asks("a"), 0.1)) == [Enlisted(start="a/1", boot=boot)]
    (answer,) = said(core.handle(beats("a", boot, 1), 0.2))
    assert isinstance(answer, BeatAck) and [replica for replica, _ in answer.places] == [0, 1]


def test_of_two_machines_with_one_name_the_one_that_is_heard_keeps_it() -> None:
    core = leading()
    boot = taken_on(core, "a")
    core.handle(beats("a", boot, 1), 0.1)
    assert said(core.handle(asks("a", "2", home="another"), 0.2)) == [], "it may be the same, set up anew"
    core.handle(beats("a", boot, 2), 0.3)
    (answer,) = said(core.handle(asks("a", "2", home="another"), 0.4))
    assert isinstance(answer, Declined) and "another machine of the name a" in answer.reason


def test_a_machine_that_was_set_up_anew_is_taken_on_when_the_old_one_has_been_silent() -> None:
    core = leading()
    boot = taken_on(core, "a")
    core.handle(beats("a", boot, 1), 0.1)
    now = 0.1
    actions: list[Action] = []
    while not any(isinstance(action, Commit) for action in actions):
        now += TIMING.tick_every_s
        assert now < 0.1 + TIMING.silent_at_most_s + 0.2
        actions = core.handle(Tick(), now)
        if any(isinstance(action, Renew) for action in actions):
            core.handle(Renewed(True), now)
        actions += core.handle(asks("a", "2", home="another"), now)
    assert now >= 0.1 + TIMING.silent_at_most_s
    (answer,) = said(agreed(core, actions, now))
    assert isinstance(answer, Enlisted) and answer.boot > boot


def test_a_restart_on_the_same_machine_waits_for_nothing() -> None:
    core = leading()
    boot = taken_on(core, "a")
    core.handle(beats("a", boot, 1), 0.1)
    newer = taken_on(core, "a", 0.2, start="2")
    (answer,) = said(core.handle(beats("a", boot, 2), 0.3))
    assert newer > boot
    assert isinstance(answer, Declined) and answer.boot == boot


def test_a_job_that_places_nobody_says_so() -> None:
    core = CoordinatorCore(JobSpec(name="job", replicas=1, shards=1), TIMING)
    core.start(0.0)
    core.handle(Campaigned(True, TERM, TERM), 0.0)
    core.handle(Loaded(None, 0, TERM), 0.0)
    (answer,) = said(core.handle(asks("a"), 0.0))
    assert isinstance(answer, Declined)
