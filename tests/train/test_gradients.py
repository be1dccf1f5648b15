import copy
from collections.abc import Callable

import pytest
import torch
from shard_work import Replica, same_bits
from torch import Tensor, nn

from outlast.errors import ConfigError
from outlast.protocol.tree import Node


class Pair(nn.Module):
    """Two parameters, each in a bucket of its own: `late` is registered last, so it is entry and bucket 0."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.early = nn.Parameter(torch.tensor([1.0, 2.0], dtype=dtype))
        self.late = nn.Parameter(torch.tensor([3.0, 4.0], dtype=dtype))


LATE, EARLY = 0, 1


def pair(shard_count: int = 4, dtype: torch.dtype = torch.float32) -> Replica:
    replica = Replica(Pair(dtype), shard_count, bucket_bytes=8)
    assert len(replica.layout.buckets) == 2
    return replica


def both(model: nn.Module, scale: float = 1.0) -> Tensor:
    return scale * (model.early * model.late).sum()


def only_late(model: nn.Module) -> Tensor:
    return (0.1 * model.late**2).sum()


def run_shard(
    replica: Replica, shard: int, *losses: Callable[[nn.Module], Tensor], samples: float = 1
) -> None:
    replica.gradients.open_shard(shard, samples)
    for loss in losses:
        replica.gradients.backward(loss(replica.model))
    replica.gradients.close_shard()


def learned(shard_count: int = 4) -> Replica:
    """A replica that has seen a shard in which each parameter came once."""
    replica = pair(shard_count)
    replica.start([0])
    run_shard(replica, 0, both)
    replica.reports.events.clear()
    return replica


def test_a_gradient_lies_in_the_vector_times_the_samples_and_nowhere_else() -> None:
    replica = pair()
    replica.start([2])
    assert replica.gradients.missing() == [2]
    run_shard(replica, 2, both, samples=3)
    assert replica.gradients.missing() == []
    (contribution,) = replica.gradients.nodes()
    assert contribution.node == Node(2, 3)
    assert contribution.flat.tolist() == [3, 6, 9, 12]
    assert (contribution.weight, contribution.loss, contribution.mask) == (3, 33, 0b11)
    assert replica.model.early.grad is None


def test_buckets_are_reported_at_the_end_of_the_first_shard_and_within_backward_afterwards() -> None:
    replica = pair()
    replica.start([0])
    gradients, events = replica.gradients, replica.reports.events
    gradients.open_shard(0, 1)
    gradients.backward(both(replica.model))
    assert not events
    gradients.close_shard()
    assert events == [(Node(0, 1), 0), (Node(0, 1), 1), (Node(0, 1), "whole")]
    events.clear()
    replica.start([0])
    gradients.open_shard(0, 1)
    gradients.backward(both(replica.model))
    assert sorted(events) == [(Node(0, 1), 0), (Node(0, 1), 1)]
    gradients.close_shard()
    assert events[2:] == [(Node(0, 1), "whole")]


def test_only_the_covers_sums_are_reported() -> None:
    replica = learned()
    replica.start([0, 1, 2])
    for shard in (0, 1, 2):
        run_shard(replica, shard, both)
    assert {node for node, _ in replica.reports.events} == {Node(0, 2), Node(2, 3)}
    assert [s.node for s in replica.gradients.nodes()] == [Node(0, 2), Node(2, 3)]


def test_an_unused_parameter_counts_as_zeros_and_is_not_in_the_mask() -> None:
    replica = pair()
    replica.gradients.pool.give_back(replica.gradients.pool.take().fill_(float("nan")))
    replica.start([0])
    run_shard(replica, 0, only_late)
    (contribution,) = replica.gradients.nodes()
    assert contribution.flat[2:].tolist() == [0, 0]
    assert contribution.mask == 1 << LATE


def test_a_parameter_that_stays_out_holds_its_bucket_until_the_end() -> None:
    replica = learned()
    replica.start([0])
    replica.gradients.open_shard(0, 1)
    replica.gradients.backward(only_late(replica.model))
    assert replica.reports.events == [(Node(0, 1), LATE)]
    replica.gradients.close_shard()
    assert replica.reports.events[1:] == [(Node(0, 1), EARLY), (Node(0, 1), "whole")]


def test_a_bucket_that_was_reported_too_soon_is_reported_again() -> None:
    replica = learned()
    replica.start([0])
    run_shard(replica, 0, both, only_late)
    first = replica.reports.events.index((Node(0, 1), LATE))
    assert replica.reports.events[first + 1 :].count((Node(0, 1), LATE)) == 1
    careful = pair()
    careful.start([0])
    run_shard(careful, 0, both, only_late)
    assert same_bits(careful.gradients.nodes()[0].flat, replica.gradients.nodes()[0].flat)
    # Next time it waits for the second part.
    replica.reports.events.clear()
    replica.start([0])
    run_shard(replica, 0, both, only_late)
    assert replica.reports.events.count((Node(0, 1), LATE)) == 1


def test_a_shard_whose_bucket_was_added_too_soon_is_computed_again() -> None:
    replica = learned()
    replica.start([0, 1])
    run_shard(replica, 0, both)
    run_shard(replica, 1, both, only_late)
    assert replica.gradients.missing() == [1]
    assert replica.gradients.nodes() == []
    assert (Node(0, 2), "whole") not in replica.reports.events
    run_shard(replica, 1, both, only_late)
    assert replica.gradients.missing() == []
    careful = pair()
    careful.start([0, 1])
    run_shard(careful, 0, both)
    careful.start([0, 1])
    run_shard(careful, 0, both)
    careful.gradients._expectation.distrust()
    run_shard(careful, 1, both, only_late)
    (ours,), (theirs,) = replica.gradients.nodes(), careful.gradients.nodes()
    assert same_bits(ours.flat, theirs.flat)
    assert (ours.weight, ours.loss, ours.mask) == (theirs.weight, theirs.loss, theirs.mask)
    replica.start([0, 1])
    run_shard(replica, 0, both)
    run_shard(replica, 1, both, only_late)
    assert replica.gradients.missing() == []


def test_shards_that_move_leave_the_other_sums_in_place() -> None:
    replica = pair(8)
    replica.start([0, 1, 5])
    for shard in (0, 1, 5):
        run_shard(replica, shard, both)
    replica.gradients.assign([0, 1, 2, 3])
    assert replica.gradients.missing() == [2, 3]
    assert replica.gradients.nodes() == []
    replica.gradients.assign([1, 4, 5])
    assert replica.gradients.missing() == [1, 4, 5]


def test_a_sum_that_is_still_being_sent_is_not_written_to() -> None:
    replica = pair()
    replica.start([0])
    run_shard(replica, 0, both)
    (sent,) = replica.gradients.nodes()
    replica.gradients.pool.hold(sent.flat)
    before = sent.flat.clone()
    replica.gradients.assign([0, 1])
    run_shard(replica, 1, lambda model: both(model, 7))
    replica.gradients.take(torch.zeros(4), 1.0, 0b11, {})
    replica.start([0])
    run_shard(replica, 0, only_late)
    assert same_bits(sent.flat, before)
    replica.gradients.pool.give_back(sent.flat)
    assert replica.gradients.pool.take() is sent.flat


def test_one_shard_per_replica_needs_one_vector() -> None:
    replica = pair()
    for _ in range(3):
        replica.start([1])
        run_shard(replica, 1, both)
        replica.gradients.take(torch.ones(4), 1.0, 0b11, {})
    assert replica.gradients.pool.allocated == 1


def test_a_shard_that_is_given_up_leaves_nothing_behind() -> None:
    replica = learned()
    replica.start([0, 1])
    run_shard(replica, 0, both)
    replica.gradients.open_shard(1, 1)
    replica.gradients.backward(both(replica.model, 9))
    replica.gradients.abandon_shard()
    assert replica.gradients.missing() == [1]
    run_shard(replica, 1, both)
    assert replica.gradients.nodes()[0].flat.tolist() == [2, 4, 6, 8]


def test_what_is_discarded_is_computed_again() -> None:
    replica = learned()
    replica.start([0, 1])
    run_shard(replica, 0, both)
    replica.gradients.open_shard(1, 1)
    replica.gradients.discard()
    replica.gradients.assign([0, 1])
    assert replica.gradients.missing() == [0, 1] and replica.gradients.nodes() == []
    for shard in (0, 1):
        run_shard(replica, shard, both)
    assert [one.flat.tolist() for one in replica.gradients.nodes()] == [[2, 4, 6, 8]]


@pytest.mark.parametrize(
    ("before", "after", "reported", "missing"),
    [
        pytest.param([1], [1], Node(1, 2), [], id="nothing changes, and all is told to the new attempt"),
        pytest.param([1], [0, 1], None, [0], id="the shard becomes a part of something larger"),
        pytest.param([0, 1], [1], None, [1], id="its sum had begun with a shard that is gone"),
        pytest.param([0, 1], [0], Node(0, 1), [], id="the shard itself is gone"),
        pytest.param([0, 1], [0, 1], Node(0, 2), [], id="the sum goes on"),
    ],
)
def test_the_assignment_may_change_in_the_middle_of_a_shard(
    before: list[int], after: list[int], reported: Node | None, missing: list[int]
) -> None:
    replica = learned()
    replica.start(before)
    if 0 in before:
        run_shard(replica, 0, both)
    replica.gradients.open_shard(1, 1)
    replica.gradients.backward(both(replica.model))
    replica.gradients.assign(after)
    replica.reports.events.clear()
    replica.gradients.close_shard()
    assert replica.gradients.missing() == missing
    whole = (reported, "whole") in replica.reports.events
    assert whole == (reported in (Node(1, 2), Node(0, 2)))
    if whole:
        assert {what for _, what in replica.reports.events} == {LATE, EARLY, "whole"}
    for shard in replica.gradients.missing():
        run_shard(replica, shard, both)
    scale = len(after)
    assert [s.flat.tolist() for s in replica.gradients.nodes()] == [[scale, 2 * scale, 3 * scale, 4 * scale]]


def test_an_empty_shard_counts_nothing() -> None:
    replica = pair()
    replica.start([0, 1])
    run_shard(replica, 0, both)
    replica.gradients.empty_shard(1)
    (total,) = replica.gradients.nodes()
    assert total.flat.tolist() == [1, 2, 3, 4]
    assert (total.weight, total.mask) == (1, 0b11)


def test_the_default_weight_counts_once_and_explicit_weights_add_up() -> None:
    replica = pair()
    replica.start([0, 2])
    run_shard(replica, 0, both, both, samples=2)
    replica.gradients.open_shard(2, 99)
    replica.gradients.backward(both(replica.model), 2)
    replica.gradients.backward(both(replica.model), 3.0)
    replica.gradients.close_shard()
    default, explicit = replica.gradients.nodes()
    assert (default.weight, default.loss, default.flat.tolist()) == (2, 44, [4, 8, 12, 16])
    assert (explicit.weight, explicit.loss, explicit.flat.tolist()) == (5, 55, [5, 10, 15, 20])


def test_a_weight_of_zero_leaves_even_a_nan_out() -> None:
    replica = pair()
    replica.start([0])
    replica.gradients.open_shard(0, 1)
    replica.gradients.backward(both(replica.model, float("nan")), 0)
    replica.gradients.close_shard()
    (contribution,) = replica.gradients.nodes()
    assert contribution.flat.tolist() == [0, 0, 0, 0]
    assert (contribution.weight, contribution.loss, contribution.mask) == (0, 0, 0)


def test_wrong_weights_and_losses_are_refused() -> None:
    replica = pair()
    replica.start([0])
    gradients, model = replica.gradients, replica.model
    with pytest.raises(ConfigError, match="backward was called outside of a shard"):
        gradients.backward(both(model))
    gradients.open_shard(0, 0)
    with pytest.raises(ConfigError, match=r"Shard 0 ended without a loss.*weight=0"):
        gradients.close_shard()
    with pytest.raises(ConfigError, match=r"samples = 0.0 in shard 0"):
        gradients.backward(both(model))
    for weight in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match=rf"weight = {weight} in shard 0"):
            gradients.backward(both(model), weight)
    with pytest.raises(ConfigError, match=r"a tensor of shape \(2,\) in shard 0.*\.mean\(\)"):
        gradients.backward(model.early * 2)
    with pytest.raises(ConfigError, match="does not require grad"):
        gradients.backward(both(model).detach())
    with pytest.raises(ConfigError, match="got a float"):
        gradients.backward(1.0)  # type: ignore[arg-type]
    gradients.backward(both(model), 1)
    with pytest.raises(ConfigError, match="one loss with a weight and one without"):
        gradients.backward(both(model))


def test_a_users_own_backward_is_refused_in_a_shard_and_left_alone_outside() -> None:
    replica = pair()
    both(replica.model).backward()
    assert replica.model.late.grad is not None
    replica.start([0])
    both(replica.model).backward()
    assert replica.model.late.grad.tolist() == [1, 2]
    replica.gradients.open_shard(0, 1)
    with pytest.raises(ConfigError, match=r"in shard 0.*step\.backward\(loss\)"):
        both(replica.model).backward()


def test_after_a_backward_that_failed_the_shard_can_not_go_on() -> None:
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, grad: Tensor) -> Tensor:
            raise ArithmeticError("broken")

    replica = pair()
    replica.start([0])
    replica.gradients.open_shard(0, 1)
    with pytest.raises(ArithmeticError):
        replica.gradients.backward(Broken.apply(both(replica.model)))
    with pytest.raises(ConfigError, match="An earlier backward of shard 0 failed"):
        replica.gradients.close_shard()
    run_shard(replica, 0, both)
    assert replica.gradients.nodes()[0].flat.tolist() == [1, 2, 3, 4]


def test_a_sparse_gradient_is_refused_by_name() -> None:
    replica = Replica(nn.Sequential(nn.Embedding(5, 2, sparse=True)), 1)
    replica.start([0])
    replica.gradients.open_shard(0, 1)
    with pytest.raises(ConfigError, match=r"gradient of 0\.weight is sparse.*sparse=False"):
        replica.gradients.backward(replica.model(torch.tensor([1, 2])).sum())


def test_a_parameter_that_was_frozen_at_the_start_must_stay_so() -> None:
    model = Pair()
    model.early.requires_grad_(False)
    replica = Replica(model, 1)
    replica.start([0])
    model.early.requires_grad_(True)
    with pytest.raises(ConfigError, match="early was frozen when the job was joined"):
        replica.gradients.start_step()


def test_the_result_is_in_grad_and_what_is_done_to_it_does_not_reach_the_record() -> None:
    replica = pair()
    replica.start([0])
    run_shard(replica, 0, both)
    record = torch.tensor([1.0, 2.0, 3.0, 4.0])
    replica.gradients.take(record, 1.0, 1 << EARLY, {})
    assert replica.model.late.grad is None
    assert replica.model.early.grad.tolist() == [3, 4]
    nn.utils.clip_grad_norm_(replica.model.parameters(), 0.1)
    replica.model.zero_grad(set_to_none=False)
    assert record.tolist() == [1, 2, 3, 4]


def test_a_replica_without_shards_takes_the_result_too() -> None:
    replica = pair()
    replica.start([])
    assert replica.gradients.missing() == []
    replica.gradients.take(torch.ones(4), 1.0, 0b11, {})
    assert replica.model.late.grad.tolist() == [1, 1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_are_summed_in_full_precision_and_get_gradients_of_their_own(dtype: torch.dtype) -> None:
    replica = pair(dtype=dtype)
    replica.start([0])
    # 257 has more bits than a bfloat16 holds.
    run_shard(replica, 0, both, both, samples=257)
    (contribution,) = replica.gradients.nodes()
    assert contribution.flat.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
    assert contribution.flat.tolist() == [514, 1028, 1542, 2056]
    replica.gradients.take(contribution.flat, 257.0, 0b11, {})
    for _ in range(2):
        assert replica.model.late.grad.dtype is dtype
        assert replica.model.late.grad.tolist() == [2, 4]
    torch.optim.AdamW(replica.model.parameters()).step()


def test_a_layer_in_channels_last_gets_its_gradient_in_the_right_places() -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    plain = copy.deepcopy(model)
    x = torch.randn(2, 3, 5, 5)
    replica = Replica(model, 1)
    replica.start([0])
    run_shard(replica, 0, lambda m: m(x).square().mean())
    replica.gradients.take(replica.gradients.nodes()[0].flat.clone(), 1.0, 0b11, {})
    plain(x).square().mean().backward()
    assert torch.equal(model.weight.grad, plain.weight.grad)


def test_closing_takes_the_hooks_off_and_a_copy_of_the_model_has_none() -> None:
    replica = pair()
    replica.start([0])
    replica.gradients.open_shard(0, 1)
    other = copy.deepcopy(replica.model)
    both(other).backward()
    assert other.late.grad is not None
    replica.gradients.close()
    both(replica.model).backward()
    assert replica.model.late.grad is not None
