"""What an agent sees of a replica on its page, and passes on to people."""

from __future__ import annotations

from pathlib import Path

from outlast.agent.watch import ReplicaWatch
from outlast.protocol.messages import Beat
from outlast.protocol.restarts import RestartPolicy
from outlast.protocol.supervision import AgentCore, TellCoordinator
from outlast.protocol.timing import Timing
from outlast.wire.progress import Progress


def test_what_a_replica_tells_for_people_is_in_the_agents_beat(tmp_path: Path) -> None:
    page = tmp_path / "replica-0.page"
    watch = ReplicaWatch(page)
    replica = Progress.open(page)
    core = AgentCore(agent="agent-0", boot=1, replicas=(0,), timing=Timing(), policy=RestartPolicy())
    core.start(0.0)
    assert (watch.sample().loss, watch.sample().saves, watch.sample().saved_ago_s) == (None, False, None)
    replica.expect(1500, 128)
    replica.tell_loss(0.25)
    replica.saves_to("/checkpoints")
    replica.saved(40, 1)
    core.sampled({0: watch.sample()}, 1.0)
    (action,) = core.beat(1.0)
    assert isinstance(action, TellCoordinator)
    assert isinstance(action.message, Beat)
    (pulse,) = action.message.pulses
    assert (pulse.total, pulse.samples, pulse.loss) == (1500, 128, 0.25)
    assert (pulse.saves, pulse.saved) == (True, 40)
    assert pulse.saved_ago_s is not None
    assert pulse.saved_ago_s > 0
    replica.close()
    watch.close()
