"""Who begins a lineage, when the one whose turn it was is cut off or stopped at the worst moment."""

import pytest
from scripted import Scripted

from outlast.protocol.views import Foundation


def begun(sim: Scripted) -> list[str]:
    """Who has begun to train from what, in order."""
    return [who for _, who, what in sim.world.transcript if what.startswith("begins from")]


@pytest.mark.parametrize("seed", range(5))
def test_a_founder_that_is_cut_off_does_not_begin_while_others_go_on_without_it(seed: int) -> None:
    """It has made its claim, and looks once more. Meanwhile it is evicted, and another one begins."""
    sim = Scripted(3, seed=seed)
    sim.until(lambda: bool(sim.vault.claims))
    sim.world.pause(sim.process(0))
    sim.cut_off(0)
    sim.until(lambda: sim.agreed.number > 0 and sim.agreed.member(0) is None)
    # A process that has not heard yet which life it is takes what is sent to it for its own.
    sim.cut_off(2, agent=False)
    sim.process(2).kill("was killed by SIGKILL")
    sim.until(lambda: begun(sim) == ["replica-1"])
    sim.until(lambda: sim.agreed.member(2) is None and sim.runs(2))
    sim.world.resume(sim.process(0))
    sim.world.run_until(sim.world.now + 0.5)
    sim.reconnect(2)
    sim.until(lambda: sim.process(2).step > 0)
    assert begun(sim) == ["replica-1"]
    sim.reconnect(0)
    sim.all_train()
    assert begun(sim) == ["replica-1"]


@pytest.mark.parametrize("seed", range(5))
def test_nobody_takes_what_a_founder_gives_that_was_stopped_just_before_it_began(seed: int) -> None:
    """It was told that it may begin. That cannot be taken back, so it does, in a view that is long over."""
    sim = Scripted(4, seed=seed)
    sim.until(lambda: bool(sim.vault.claims))
    founder, saver = sim.process(0), sim.process(0).saver
    begins, told = saver.may_begin, []

    def stop(foundation: Foundation) -> None:
        told.append(foundation)
        sim.world.pause(founder)

    saver.may_begin = stop  # type: ignore[method-assign]
    sim.until(lambda: bool(told))
    sim.cut_off(0)
    sim.until(lambda: sim.agreed.member(0) is None)
    sim.cut_off(2, agent=False)
    sim.process(2).kill("was killed by SIGKILL")
    sim.until(lambda: begun(sim) == ["replica-1"] and sim.process(3).step > 0)
    sim.until(lambda: sim.agreed.member(2) is None and sim.runs(2))
    sim.world.resume(founder)
    begins(told[0])
    sim.world.run_until(sim.world.now + 0.5)
    assert begun(sim) == ["replica-1", "replica-0"]
    sim.reconnect(2)
    sim.until(lambda: sim.process(2).step > 0)
    sim.reconnect(0)
    sim.all_train()
    assert begun(sim) == ["replica-1", "replica-0"]
    assert len({node.saver.claim for node in sim.replicas()}) == 1


@pytest.mark.parametrize("seed", range(5))
def test_what_arrives_late_is_not_gone_on_from_though_who_began_after_it_saved_nothing(seed: int) -> None:
    """The power goes while a manifest is on its way. It arrives when others train without it, and the power
    goes once more."""
    sim = Scripted(2, seed=seed)
    sim.until(lambda: sim.vault.commits > 0)
    sim.vault.detained_s = 10.0
    sim.until(lambda: sim.vault.detained_s == 0.0)
    before = set(sim.vault.manifests)
    sim.cut_power()
    sim.vault.save_every = 10**9
    sim.until(lambda: len(begun(sim)) == 2)
    sim.until(lambda: bool(sim.vault.manifests.keys() - before))
    assert all(sim.process(replica).step > max(before).step for replica in (0, 1))
    sim.cut_power()
    sim.until(lambda: len(begun(sim)) == 3)
    assert {sim.vault.claims[number].base for number in sim.vault.claims if number > 1} == {max(before)}
    sim.all_train()
