"""A large job: what can wait is decided in one go at the next tick, and what cannot is decided at once."""

import pytest

from outlast.protocol.coordinator import (
    GATHERS_FROM,
    Action,
    Commit,
    Committed,
    CoordinatorCore,
    Disconnected,
    Loaded,
    Publish,
    Received,
    Send,
    Tick,
)
from outlast.protocol.election import Campaigned
from outlast.protocol.evidence import Evidence
from outlast.protocol.messages import (
    Admitted,
    Beat,
    BeatAck,
    Departure,
    Message,
    Pulse,
    Register,
    Report,
    ReportAck,
)
from outlast.protocol.roster import Change
from outlast.protocol.timing import Timing
from outlast.protocol.views import JobSpec, Membership, process_number

PROCESS = process_number(1, 1)
MANY = GATHERS_FROM


class Office:
    """A coordinator that leads, and a store that answers when it is told to."""

    def __init__(self, replicas: int, document: Membership | None = None) -> None:
        self.core = CoordinatorCore(JobSpec(name="job", replicas=replicas, shards=replicas), Timing())
        self.commits: list[Commit] = []
        self.now = 0.0
        self.core.start(0.0)
        self.core.handle(Campaigned(True, 1, 1), 0.0)
        self.core.handle(Loaded(document, 1 if document else 0, 1), 0.0)

    def hear(self, sender: str, message: Message) -> list[Action]:
        return self._do(Received(sender, message))

    def tick(self) -> list[Action]:
        self.now += 0.05
        return self._do(Tick())

    def store(self) -> list[Action]:
        """The newest commit is accepted."""
        return self._do(Committed(self.commits[-1].ticket, revision=10 + len(self.commits)))

    def _do(self, event: Received | Tick | Committed | Disconnected) -> list[Action]:
        actions = self.core.handle(event, self.now)
        self.commits += [action for action in actions if isinstance(action, Commit)]
        return actions

    def lose(self, sender: str) -> list[Action]:
        return self._do(Disconnected(sender))

    def train(self) -> None:
        """All register, all have heard of the first view, and nothing is left to be decided."""
        for replica in self.replicas:
            self.hear(f"replica-{replica}", register(replica))
            self.hear(f"agent-{replica}", beat(replica, 1))
        self.tick()
        self.store()
        for replica in self.replicas:
            self.hear(f"replica-{replica}", report(replica))
        self.tick()
        self.store()
        self.tick()
        self.commits.clear()

    @property
    def replicas(self) -> range:
        return range(self.document.spec.replicas)

    @property
    def document(self) -> Membership:
        assert self.core.membership is not None
        return self.core.membership


def register(replica: int, serial: int = 1) -> Register:
    process = process_number(1, serial)
    return Register(replica=replica, process=process, rejoin=0, agent=f"agent-{replica}")


def beat(replica: int, number: int, *departures: Departure, boot: int = 1) -> Beat:
    pulses = () if departures else (Pulse(replica=replica, process=PROCESS, incarnation=1),)
    return Beat(
        agent=f"agent-{replica}", boot=boot, number=number, pulses=pulses, departures=tuple(departures)
    )


def report(replica: int, *, view: int = 1, failing: str = "", leaving: bool = False) -> Report:
    return Report(replica=replica, incarnation=1, view=view, failing=failing, leaving=leaving)


def gone(replica: int, *, finished: bool = False) -> Departure:
    return Departure(replica=replica, process=PROCESS, how="was killed", finished=finished, in_order=finished)


def test_first_contacts_are_one_decision() -> None:
    office = Office(MANY)
    for replica in range(MANY):
        assert office.hear(f"replica-{replica}", register(replica)) == []
    office.tick()
    (commit,) = office.commits
    assert len(commit.membership.view.members) == MANY
    actions = office.store()
    assert sum(isinstance(one, Send) and isinstance(one.message, Admitted) for one in actions) == MANY
    assert sum(isinstance(one, Publish) for one in actions) == 1


def test_who_comes_while_a_commit_is_in_flight_waits_for_the_next_tick() -> None:
    office = Office(MANY)
    office.hear("replica-0", register(0))
    office.tick()
    for replica in range(1, MANY):
        office.hear(f"replica-{replica}", register(replica))
    office.store()
    assert len(office.commits) == 1
    office.tick()
    assert len(office.commits) == 2
    assert len(office.commits[-1].membership.view.members) == MANY


def test_a_small_job_waits_for_nothing() -> None:
    office = Office(MANY - 1)
    office.hear("replica-0", register(0))
    assert len(office.commits) == 1


def test_a_death_is_decided_at_once() -> None:
    office = Office(MANY)
    office.train()
    office.hear("agent-3", beat(3, 2, gone(3)))
    (commit,) = office.commits
    assert len(commit.membership.view.members) == MANY - 1


@pytest.mark.parametrize("pressing", [report(5, failing="ValueError"), report(5, leaving=True)])
def test_what_a_replica_says_of_its_own_end_is_decided_at_once(pressing: Report) -> None:
    office = Office(MANY)
    office.train()
    office.hear("replica-5", pressing)
    (commit,) = office.commits
    assert commit.membership.view.member(5) is None


def test_an_agent_that_was_started_anew_proves_deaths_at_once() -> None:
    office = Office(MANY)
    office.train()
    office.hear("agent-7", Beat(agent="agent-7", boot=2, number=1))
    (commit,) = office.commits
    assert commit.membership.view.member(7) is None


def test_a_death_that_is_told_while_a_commit_is_in_flight_follows_it_at_once() -> None:
    office = Office(MANY)
    office.train()
    office.hear("agent-3", beat(3, 2, gone(3)))
    office.hear("agent-4", beat(4, 2, gone(4)))
    assert len(office.commits) == 1
    office.store()
    assert len(office.commits) == 2
    assert office.commits[-1].membership.view.member(4) is None


def test_all_that_a_new_view_makes_them_say_is_one_decision() -> None:
    office = Office(MANY)
    office.train()
    office.hear("agent-3", beat(3, 2, gone(3)))
    office.store()
    office.commits.clear()
    for replica in office.replicas:
        if replica != 3:
            (ack,) = office.hear(f"replica-{replica}", report(replica, view=2))
            assert isinstance(ack, Send) and isinstance(ack.message, ReportAck)
    assert office.commits == []
    office.tick()
    (commit,) = office.commits
    assert commit.membership.active == 2


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When a leader has looked at all that it knows."""
    looks: list[float] = []
    change = Evidence.change

    def counted(self: Evidence, membership: Membership, now: float) -> Change:
        looks.append(now)
        return change(self, membership, now)

    monkeypatch.setattr(Evidence, "change", counted)
    return looks


def test_a_whole_fleet_that_comes_to_a_new_leader_costs_one_look(looks: list[float]) -> None:
    before = Office(MANY)
    before.train()
    office = Office(MANY, before.document)
    looks.clear()
    for replica in office.replicas:
        (ack,) = office.hear(f"agent-{replica}", beat(replica, 5))
        assert isinstance(ack, Send) and isinstance(ack.message, BeatAck)
        office.hear(f"replica-{replica}", report(replica))
    assert looks == []
    office.tick()
    assert len(looks) == 1
    assert office.commits == []
    assert office.document == before.document


def test_those_who_finish_together_are_one_decision(looks: list[float]) -> None:
    office = Office(MANY)
    office.train()
    looks.clear()
    for replica in office.replicas:
        office.hear(f"agent-{replica}", beat(replica, 2, gone(replica, finished=True)))
        office.lose(f"replica-{replica}")
    assert looks == []
    for _ in range(6):
        office.tick()
    (commit,) = office.commits
    assert commit.membership.finished == MANY


def test_who_comes_right_after_a_view_waits_for_others_that_come() -> None:
    office = Office(MANY)
    office.train()
    for replica in (3, 4):
        office.hear(f"agent-{replica}", beat(replica, 2, gone(replica)))
        office.store()
    office.hear("replica-3", register(3, serial=2))
    office.tick()
    assert all(commit.membership.view.learner(3) is None for commit in office.commits)
    office.hear("replica-4", register(4, serial=2))
    for _ in range(3):
        office.tick()
        office.store()
    view = office.document.view
    assert {member.replica for member in view.learners} == {3, 4}
    assert view.number == 4, "two views without them, and one with both"


def test_nobody_waits_to_be_taken_out_of_a_view() -> None:
    office = Office(MANY)
    office.train()
    for before, replica in enumerate((3, 4, 5)):
        assert len(office.commits) == before
        office.hear(f"agent-{replica}", beat(replica, 2, gone(replica)))
        office.store()
    assert office.document.view.number == 4


def test_a_new_life_proves_at_once_that_the_old_one_is_over() -> None:
    office = Office(MANY)
    office.train()
    office.hear("agent-3", beat(3, 2, gone(3)))
    office.store()
    office.hear("replica-5", register(5, serial=2))
    office.tick()
    assert office.commits[-1].membership.view.member(5) is None
