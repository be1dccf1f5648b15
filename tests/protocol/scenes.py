"""A coordinator that replicas talk to, for the tests of what it writes down for them."""

from outlast.protocol.coordinator import Action, Commit, Committed, CoordinatorCore, Loaded, Received
from outlast.protocol.election import Campaigned
from outlast.protocol.messages import Message, Register, Report
from outlast.protocol.timing import Timing
from outlast.protocol.views import JobSpec, process_number

PROCESS = process_number(1, 1)


class Scene:
    """A coordinator of two replicas in view 1, and the store that says yes to everything."""

    def __init__(self) -> None:
        self.core = CoordinatorCore(JobSpec(name="job", replicas=2, shards=2), Timing())
        self.core.start(0.0)
        self.core.handle(Campaigned(True, 5, 5), 0.0)
        self.core.handle(Loaded(None, 0, 5), 0.0)
        self._revision = 10
        for replica in (0, 1):
            self.say(replica, Register(replica=replica, process=PROCESS, rejoin=0, agent=f"agent-{replica}"))
        assert self.core.membership is not None and self.core.membership.view.number == 1

    def say(self, replica: int, message: Message, *, commits: bool = True) -> list[Action]:
        actions = self.core.handle(Received(f"replica-{replica}", message), 0.1)
        for commit in [action for action in actions if isinstance(action, Commit)] if commits else []:
            self._revision += 1
            actions += self.core.handle(Committed(commit.ticket, revision=self._revision), 0.1)
        return actions

    def report(
        self, replica: int, *, commits: bool = True, incarnation: int = 1, **more: object
    ) -> list[Action]:
        report = Report(replica=replica, incarnation=incarnation, view=1, **more)  # type: ignore[arg-type]
        return self.say(replica, report, commits=commits)
