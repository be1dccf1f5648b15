"""What is sane is judged by the run's own history, which is part of its state."""

import math

import msgspec
import pytest
import torch
from torch import Tensor, nn

import outlast
from outlast.errors import ConfigError, LoopError, TrainingDiverged
from outlast.protocol.kinds import RecordNote
from outlast.protocol.tree import Node, leaf
from outlast.train.screening import (
    EMPTY_MOST,
    LEAST_REMEMBERED,
    REMEMBERED,
    SKIPPED_MOST,
    Screening,
    checked_audit,
    has_scaler,
)

SHARDS = 4


def note(norm: float = 1.0, left_out: tuple[int, ...] = ()) -> RecordNote:
    return RecordNote(1.0, 0.0, b"", {}, view=1, shards=(0,) * SHARDS, norm=norm, left_out=left_out)


def after(*notes: RecordNote, lenient: bool = False) -> Screening:
    screening = Screening(lenient=lenient)
    for step, one in enumerate(notes, start=1):
        screening.applied(step, one, SHARDS)
    return screening


def norms(*values: float) -> dict[Node, float]:
    return {leaf(shard): value for shard, value in enumerate(values)}


USUAL = [note()] * LEAST_REMEMBERED


def test_far_beyond_what_is_usual_is_doubted() -> None:
    assert after(*USUAL).doubts(norms(1, 99, 101, 1)) == [leaf(2)]
    assert after(*USUAL[1:]).doubts(norms(1, 99, 101, 1)) == []


def test_what_is_not_finite_is_always_doubted() -> None:
    assert Screening().doubts(norms(1, math.inf, 1, 1)) == [leaf(1)]
    assert after(*USUAL).doubts(norms(*[math.inf] * 4)) == [leaf(shard) for shard in range(4)]


def test_where_most_are_beyond_the_limit_the_run_has_changed() -> None:
    assert after(*USUAL).doubts(norms(1, 200, 200, 200)) == []
    assert after(*USUAL).doubts(norms(1, 1, 200, 200)) == [leaf(2), leaf(3)]
    assert after(*USUAL).doubts(norms(math.inf, 200, 200, 200)) == [leaf(0)]


def test_zeros_are_no_measure() -> None:
    assert after(*[note(0.0)] * 20).doubts(norms(0, 1, 0, 0)) == []


def test_only_the_last_records_count() -> None:
    assert after(note(50.0), *[note()] * (REMEMBERED - 1)).doubts(norms(1, 1000, 1, 1)) == []
    assert after(note(50.0), *[note()] * REMEMBERED).doubts(norms(1, 1000, 1, 1)) == [leaf(1)]


def test_the_history_travels_with_the_state() -> None:
    given = Screening()
    given.load_state_dict(after(*USUAL).state_dict())
    assert given.doubts(norms(1, 99, 101, 1)) == [leaf(2)]


def test_a_scaler_may_skip_some_steps_in_a_row() -> None:
    skipped = [note(math.inf)] * SKIPPED_MOST
    assert after(*skipped[1:], lenient=True).doubts(norms(math.inf, 1, 1, 1)) == []
    assert after(*skipped, lenient=True).doubts(norms(math.inf, 1, 1, 1)) == [leaf(0)]
    assert after(*skipped, note(), lenient=True).doubts(norms(math.inf, 1, 1, 1)) == []
    assert after(*USUAL, lenient=True).doubts(norms(1, 1, 1, 101)) == [leaf(3)]


def test_a_scaler_is_known_by_its_class_if_it_is_enabled() -> None:
    assert has_scaler({"scaler": torch.amp.GradScaler("cpu")})
    assert not has_scaler({"scaler": torch.amp.GradScaler("cpu", enabled=False)})
    assert not has_scaler({"counter": object()})


def test_many_steps_without_anything_end_the_run() -> None:
    nothing = note(0.0, tuple(range(SHARDS)))
    screening = after(*[nothing] * (EMPTY_MOST - 1))
    assert screening.counts.left_out == SHARDS * (EMPTY_MOST - 1)
    with pytest.raises(TrainingDiverged, match=r"step 77: .* any shard from 0 to 3"):
        screening.applied(77, nothing, SHARDS)
    after(*[nothing] * (EMPTY_MOST - 1), note(), *[nothing] * (EMPTY_MOST - 1))


def test_it_is_said_how_the_loss_has_grown_before_that() -> None:
    screening = after()
    for step, loss in enumerate([2.0, 1.0, 0.5, 4.0, 3e9], start=1):
        screening.applied(step, msgspec.structs.replace(note(), loss=loss), SHARDS)
    nothing = note(0.0, tuple(range(SHARDS)))
    for step in range(6, 5 + EMPTY_MOST):
        screening.applied(step, nothing, SHARDS)
    with pytest.raises(
        TrainingDiverged, match=r"since step 6 .* grew from 0\.5 at step 3 to 3e\+09 at step 5"
    ):
        screening.applied(5 + EMPTY_MOST, nothing, SHARDS)


@pytest.mark.parametrize("audit", [-0.1, 1.1, math.nan, "often", True])
def test_an_audit_is_a_share(audit: object) -> None:
    with pytest.raises(ConfigError, match="from 0 to 1"):
        checked_audit(audit, exact=True)


def test_audits_compare_bits() -> None:
    with pytest.raises(ConfigError, match="exact"):
        checked_audit(0.5, exact=False)


def test_audits_are_drawn_from_seed_and_step() -> None:
    nodes, owners = [leaf(0), leaf(1), leaf(2)], [0, 1, 2]
    screening = Screening(audit=0.2)
    drawn = [screening.audited(5, step, nodes, owners) for step in range(2000)]
    assert drawn == [Screening(audit=0.2).audited(5, step, nodes, owners) for step in range(2000)]
    audited = [one for one in drawn if one[0]]
    assert 300 < len(audited) < 500
    assert {node for some, _ in audited for node in some} == set(nodes)
    assert {owner for _, some in audited for owner in some} == set(owners)
    assert Screening(audit=1).audited(5, 1, nodes, owners)[1] == owners


# In a process of its own.


def model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 1)


def loss_of(net: nn.Module, shard: int) -> Tensor:
    return net(torch.full((2, 4), float(shard + 1))).square().mean()


def test_alone_a_shard_whose_data_is_bad_is_left_out() -> None:
    net = model()
    with outlast.join(model=net, shards=SHARDS) as job:
        for step in job.steps(1):
            for shard in step:
                step.backward(loss_of(net, shard) * (math.nan if shard == 2 else 1.0))
            grad = net.weight.grad
        assert job.screened.left_out == 1
        assert job.screened.recomputed == 1
    expected = model()
    sum(loss_of(expected, shard) for shard in (0, 1, 3)).div(3).backward()
    torch.testing.assert_close(grad, expected.weight.grad)


def test_alone_what_is_sane_the_second_time_counts() -> None:
    net, first = model(), [True]
    with outlast.join(model=net, shards=SHARDS) as job:
        for step in job.steps(1):
            for shard in step:
                bad = shard == 2 and first and first.pop()
                step.backward(loss_of(net, shard) * (math.inf if bad else 1.0))
            assert net.weight.grad is not None and net.weight.grad.isfinite().all()
        assert (job.screened.left_out, job.screened.recomputed) == (0, 1)


def diverge(net: nn.Module) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with outlast.join(model=net, optimizer=optimizer, shards=SHARDS) as job:
        for step in job.steps(100):
            for shard in step:
                step.backward(loss_of(net, shard) * math.nan)
            assert all(parameter.grad is None for parameter in net.parameters())
            optimizer.step()


def test_alone_a_model_that_has_diverged_ends_with_an_error() -> None:
    net = model()
    with pytest.raises(TrainingDiverged, match=f"step {EMPTY_MOST}:"):
        diverge(net)
    assert torch.equal(net.weight, model().weight)


def test_with_a_scaler_a_step_that_is_not_finite_is_skipped() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    before = net.weight.detach().clone()
    with outlast.join(model=net, optimizer=optimizer, shards=SHARDS, state={"scaler": scaler}) as job:
        for step in job.steps(2):
            for shard in step:
                bad = step.number == 1 and shard == 2
                step.backward(scaler.scale(loss_of(net, shard) * (math.inf if bad else 1.0)))
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if step.number == 1:
                assert torch.equal(net.weight, before)
        assert (job.screened.recomputed, job.screened.left_out) == (0, 0)
    assert scaler.get_scale() == 2.0**9
    assert not torch.equal(net.weight, before)


@pytest.mark.parametrize("what", [math.nan, math.inf])
def test_a_step_that_was_let_through_for_a_scaler_is_not_applied_without_it(what: float) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    state = {"scaler": torch.amp.GradScaler("cpu")}
    before = net.weight.detach().clone()

    def train() -> None:
        with outlast.join(model=net, optimizer=optimizer, shards=SHARDS, state=state) as job:
            for step in job.steps(2):
                for shard in step:
                    step.backward(loss_of(net, shard) * (what if shard == 2 else 1.0))
                optimizer.step()

    with pytest.raises(LoopError, match=r"replica 0, step 1.*scaler\.step\(optimizer\) instead"):
        train()
    assert torch.equal(net.weight, before)


def test_what_is_large_and_finite_may_be_applied_with_a_scaler_at_hand() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-30)
    state = {"scaler": torch.amp.GradScaler("cpu")}
    with outlast.join(model=net, optimizer=optimizer, shards=SHARDS, state=state) as job:
        for step in job.steps(1):
            for shard in step:
                step.backward(loss_of(net, shard) * 1e25)
            optimizer.step()
    assert net.weight.isfinite().all()


def test_alone_audits_find_nothing() -> None:
    net = model()
    with outlast.join(model=net, shards=SHARDS, audit=1) as job:
        for step in job.steps(20):
            for shard in step:
                step.backward(loss_of(net, shard))
        assert (job.screened.recomputed, job.screened.blamed) == (20, 0)
