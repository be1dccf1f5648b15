"""What is said of states that differ: what, on which replicas, and what may have done it."""

import torch
from blake3 import blake3
from torch import nn

from outlast.protocol.step_words import Differ
from outlast.protocol.views import Member, View
from outlast.state.entries import DIGEST_BYTES, Entries, entries_of
from outlast.state.training import TrainingState
from outlast.train.differing import Report


class Program:
    def __init__(self, *, lr: float = 0.1, weight: float = 0.0, statistic: float = 0.0) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)
        with torch.no_grad():
            self.model[0].weight.add_(weight)
            self.model[1].running_mean.add_(statistic)
        self.state = TrainingState(self.model, {"optimizer": optimizer})

    def entries(self) -> Entries:
        image, tensors = self.state.capture()
        digests = [blake3(t.detach().numpy().tobytes()).digest(DIGEST_BYTES) for t in tensors]
        return entries_of(image, digests)


def report(
    *programs: Program, members: tuple[int, ...] = (), earlier: tuple[int, ...] = (), buffers: bool = False
) -> Report:
    """All began with the same state, and have these now."""
    entries = {replica: program.entries().digests for replica, program in enumerate(programs)}
    differ = Differ(20, members, 10, buffers=buffers, again=True, entries=entries, earlier=earlier)
    own = programs[0]
    return Report(own.state, differ, keys=own.entries().keys, verified=Program().entries().digests)


def test_what_only_the_chief_has_changed() -> None:
    found = report(Program(lr=0.5), Program(), Program(), members=(0,), earlier=(0,))
    assert found.what == "'lr' of parameter group 0 of the optimizer"
    told = found.ending(chief=0)
    assert told.startswith("the states of replicas after step 20 differ again in the same place")
    assert "What differs is 'lr' of parameter group 0 of the optimizer: only replica 0 has changed it" in told
    assert "Is something done under `if job.chief` that belongs on every replica?" in told


def test_of_two_it_is_known_who_changed_what_the_other_left_alone() -> None:
    told = report(Program(), Program(lr=0.5)).ending(chief=0)
    assert "only replica 1 has changed it since step 10" in told
    assert "Does something happen on replica 1 only" in told and "if job.chief" not in told


def test_of_two_that_have_both_changed_it_either_may_be_wrong() -> None:
    told = report(Program(weight=1), Program(weight=2)).ending(chief=0)
    assert "the parameter 0.weight: replica 0 and replica 1 do not have the same" in told
    assert "if job.chief" in told
    assert "without a seed" in told


def test_who_leaves_out_what_the_others_do() -> None:
    told = report(Program(lr=0.5), Program(lr=0.5), Program()).ending(chief=0)
    assert "only replica 2 has not changed it since step 10" in told
    # Another one was chief before this one.
    assert "if job.chief" in told


def test_what_was_done_comes_before_what_follows_from_it() -> None:
    found = report(Program(lr=0.5, weight=1), Program(weight=2), Program(weight=2), members=(0,))
    assert found.what == "'lr' of parameter group 0 of the optimizer and the parameter 0.weight"
    assert "With it differs the parameter 0.weight." in found.ending(chief=0)


def test_another_replica_than_before_is_another_chief() -> None:
    found = report(Program(weight=1), Program(weight=2), Program(weight=1), members=(1,), earlier=(0,))
    assert "if job.chief" in found.ending(chief=0)


def test_buffers_are_named_without_a_copy_of_the_state() -> None:
    programs = [Program(statistic=1), Program(), Program()]
    entries = {replica: program.entries().digests for replica, program in enumerate(programs)}
    differ = Differ(20, (0,), 10, buffers=True, again=True, entries=entries)
    told = Report(programs[0].state, differ, keys={}, verified=b"").ending(chief=0)
    assert told.startswith("the buffers with which replicas begin step 21 differ again")
    assert "What differs is the buffer 1.running_mean: replica 0 has something else than the others" in told


def test_the_first_time_it_is_told_as_a_machines_doing() -> None:
    view = View(number=1, members=(Member(0, 1, "here:1"), Member(1, 1, "there:2"), Member(2, 1)))
    flipped = report(Program(), Program(weight=1), Program(), members=(1,)).first(view)
    assert flipped.startswith(
        "silent corruption: the states of replicas after step 20 differ: replica 1 (at there:2)"
    )
    assert flipped.endswith(
        "in the steps 11 to 20, which are void: all go back to step 10 and do them again. It is "
        "in the parameter 0.weight."
    )
    rate = report(Program(), Program(lr=1)).first(view)
    assert "nobody can be named" in rate
    assert rate.endswith("hardly ever flip: does the script change them on one replica only?")


def test_if_nothing_is_known_that_is_said() -> None:
    differ = Differ(20, (1,), 10, again=True, entries={0: b"", 1: b"", 2: b""})
    told = Report(Program().state, differ, keys={}, verified=b"")
    assert told.what == ""
    assert "It is not known what differs on replica 1." in told.ending(chief=0)
