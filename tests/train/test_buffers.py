from collections.abc import Callable

import pytest
import torch
from shard_work import Replica
from torch import Tensor, nn

from outlast.errors import ConfigError
from outlast.train.buffers import LARGE_BYTES
from outlast.train.sums import raw_bytes


class Counting(nn.Module):
    """A model that does to its buffers what the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("mean", torch.tensor([1.0, 2.0]))
        self.register_buffer("mask", torch.tensor([float("-inf")], dtype=torch.bfloat16))
        self.register_buffer("count", torch.tensor(5))
        self.register_buffer("turn", torch.ones(2, dtype=torch.complex64))


Change = Callable[[Counting], object]
MEAN, MASK = 1 << 1, 1 << 2


@pytest.fixture
def replica() -> Replica:
    made = Replica(Counting(), 4)
    made.start([0, 1])
    return made


def run(replica: Replica, shard: int, change: Change, weight: float = 1) -> None:
    replica.gradients.open_shard(shard, 1)
    change(replica.model)  # type: ignore[arg-type]
    replica.gradients.backward(replica.model.weight.sum(), weight)
    replica.gradients.close_shard()


def nothing(model: Counting) -> None:
    pass


def mean_of(replica: Replica) -> Tensor:
    (total,) = replica.gradients.nodes()
    return replica.layout.views(total.flat)[1] / total.weight


def test_every_shard_starts_from_the_steps_own_buffers(replica: Replica) -> None:
    seen: list[list[float]] = []

    def change(model: Counting) -> None:
        seen.append([*model.mean.tolist(), model.count.item()])
        model.mean.add_(1)
        model.count += 1

    run(replica, 0, change)
    run(replica, 1, change)
    assert seen == [[1, 2, 5], [1, 2, 5]]
    assert mean_of(replica).tolist() == [2, 3]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda model: model.mean.mul_(3), id="in place"),
        pytest.param(lambda model: model.mean.data.mul_(3), id="past autograd"),
        pytest.param(lambda model: setattr(model, "mean", model.mean * 3), id="by another tensor"),
        pytest.param(lambda model: setattr(model, "mean", model.mean * 3 * model.weight), id="with a graph"),
    ],
)
def test_a_change_is_seen_however_it_is_made_and_averaged_by_weight(replica: Replica, change: Change) -> None:
    own = replica.model.mean
    run(replica, 0, change, weight=3)
    run(replica, 1, nothing, weight=1)
    (total,) = replica.gradients.nodes()
    assert total.mask == 0b1 | MEAN
    assert mean_of(replica).tolist() == [2.5, 5.0]
    replica.gradients.take(total.flat, total.weight, total.mask, total.integers)
    assert replica.model.mean is own
    assert own.tolist() == [2.5, 5.0]
    assert not own.requires_grad
    replica.start([0, 1])
    run(replica, 0, nothing)
    run(replica, 1, nothing)
    assert replica.gradients.nodes()[0].mask == 0b1


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("number", [7.0, float("nan"), float("inf")])
def test_a_change_of_any_number_is_seen(replica: Replica, place: int, number: float) -> None:
    run(replica, 0, lambda model: model.mean.data[place : place + 1].fill_(number))
    run(replica, 1, nothing)
    assert replica.gradients.nodes()[0].mask == 0b1 | MEAN


def test_buffers_that_did_not_change_keep_their_bits(replica: Replica) -> None:
    replica.model.mean.copy_(torch.tensor([0.1, 1 / 3]))
    replica.start([0, 1])
    run(replica, 0, nothing, weight=3)
    run(replica, 1, nothing, weight=4)
    (total,) = replica.gradients.nodes()
    replica.gradients.take(total.flat, total.weight, total.mask, total.integers)
    assert torch.equal(replica.model.mean, torch.tensor([0.1, 1 / 3]))
    assert replica.model.mask.tolist() == [float("-inf")]
    assert total.integers == {}


@pytest.mark.parametrize("by", [(1, -4), (-4, 1)])
def test_integer_buffers_become_the_largest_and_the_rest_goes_back(
    replica: Replica, by: tuple[int, int]
) -> None:
    run(replica, 0, lambda model: model.count.add_(by[0]))
    run(replica, 1, lambda model: model.count.add_(by[1]))
    (total,) = replica.gradients.nodes()
    assert total.integers == {0: (6).to_bytes(8, "little")}
    replica.gradients.take(total.flat, total.weight, total.mask, total.integers)
    assert replica.model.count.item() == 6
    replica.start([0])
    run(replica, 0, lambda model: (model.count.add_(1), model.mean.add_(1)))
    replica.gradients.take(torch.zeros(replica.layout.size), 1.0, 0b1, {})
    assert replica.model.count.item() == 6
    assert replica.model.mean.tolist() == [1, 2]


def test_a_step_starts_from_what_the_user_made_of_the_buffers(replica: Replica) -> None:
    replica.gradients.take(torch.zeros(replica.layout.size), 1.0, 0, {})
    replica.model.mean.data.fill_(9)
    replica.start([0, 1])
    run(replica, 0, lambda model: model.mean.add_(1))
    run(replica, 1, nothing)
    assert mean_of(replica).tolist() == [9.5, 9.5]


def test_a_shard_without_weight_has_no_say(replica: Replica) -> None:
    def change(model: Counting) -> None:
        model.mean.fill_(float("nan"))
        model.count += 100

    run(replica, 0, change, weight=0)
    run(replica, 1, lambda model: model.count.add_(1))
    (total,) = replica.gradients.nodes()
    assert mean_of(replica).tolist() == [1, 2]
    assert total.mask == 0b1
    assert total.integers == {0: (6).to_bytes(8, "little")}


def test_what_can_not_be_merged_is_refused_by_name(replica: Replica) -> None:
    with pytest.raises(ConfigError, match="complex buffer turn changed in a shard"):
        run(replica, 0, lambda model: model.turn.mul_(1j))
    with pytest.raises(ConfigError, match=r"buffer mean changed its shape from \(2,\) to \(3,\)"):
        run(replica, 0, lambda model: setattr(model, "mean", torch.zeros(3)))
    with pytest.raises(ConfigError, match=r"buffer mean is gone"):
        run(replica, 0, lambda model: setattr(model, "mean", None))
    replica.model.mean = torch.zeros(3)
    with pytest.raises(ConfigError, match=r"became torch.float32 \(3,\); it was torch.float32 \(2,\)"):
        replica.gradients.start_step()


def test_a_gap_that_is_marked_with_nan_has_not_changed(replica: Replica) -> None:
    """NaN is not equal to itself; taken for a change it would make every contribution look wrong."""
    with torch.no_grad():
        replica.model.mean[1] = float("nan")  # type: ignore[index,operator]
    replica.start([0, 1])
    run(replica, 0, nothing)
    run(replica, 1, nothing)
    (total,) = replica.gradients.nodes()
    assert not total.mask & MEAN


def test_a_digest_is_of_every_bit_that_shards_start_from(replica: Replica) -> None:
    gradients, model = replica.gradients, replica.model
    first = gradients.buffers_digest()
    assert first == gradients.buffers_digest() != b""
    run(replica, 0, lambda model: model.mean.add_(1))
    assert gradients.buffers_digest() == first, "what a shard makes of them is no part of it"
    for name, buffer in [*model.named_buffers()]:
        before = buffer.detach().clone()
        buffer.data.view(-1)[-1:].view(torch.uint8)[-1:].bitwise_xor_(0x80)
        gradients.start_step()
        assert gradients.buffers_digest() != first, name
        buffer.data.copy_(before)
    model.mean.data.sub_(1)
    gradients.start_step()
    assert gradients.buffers_digest() == first


def test_a_digest_is_of_the_buffers_that_a_later_shard_starts_from(replica: Replica) -> None:
    """A bit may flip in what is remembered, between two shards."""
    first = replica.gradients.buffers_digest()
    run(replica, 0, nothing)
    replica.gradients.step_buffers()[id(replica.model.mean)].add_(1)
    seen: list[list[float]] = []
    run(replica, 1, lambda model: seen.append(model.mean.tolist()))
    assert seen == [[2, 3]]
    assert replica.gradients.buffers_digest() != first


def test_what_happens_to_the_models_own_buffers_before_the_first_shard_enters_nothing(
    replica: Replica,
) -> None:
    first = replica.gradients.buffers_digest()
    replica.model.mean.data.add_(1)
    seen: list[list[float]] = []
    run(replica, 0, lambda model: seen.append(model.mean.tolist()))
    assert seen == [[1, 2]]
    assert replica.gradients.buffers_digest() == first


def test_without_buffers_there_is_no_digest_and_empty_ones_have_one() -> None:
    plain = Replica(nn.Linear(1, 1), 4)
    plain.start([0])
    assert plain.gradients.buffers_digest() == b""
    model = nn.Linear(1, 1)
    model.register_buffer("nothing", torch.empty(0))
    empty = Replica(model, 4)
    empty.start([0])
    assert empty.gradients.buffers_digest() != b""


class Masked(nn.Module):
    """Beside its statistics it has a mask, which nobody changes but the test."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("mean", torch.tensor([1.0, 2.0]))
        self.register_buffer("mask", torch.zeros(LARGE_BYTES, dtype=torch.bool))
        self.register_buffer("table", torch.zeros(LARGE_BYTES // 4))


@pytest.fixture
def masked() -> Replica:
    made = Replica(Masked(), 4)
    made.start([0, 1])
    return made


def flip(buffer: Tensor) -> None:
    buffer.data.view(-1)[-1:].view(torch.uint8)[-1:].bitwise_xor_(0x80 if buffer.is_floating_point() else 1)


def remembered(replica: Replica, name: str) -> Tensor:
    return replica.gradients.step_buffers()[id(getattr(replica.model, name))]


@pytest.mark.parametrize("name", ["mean", "mask", "table"])
def test_whoever_writes_to_a_large_buffer_between_two_steps_changes_the_digest(
    masked: Replica, name: str
) -> None:
    first = masked.gradients.buffers_digest()
    masked.gradients.start_step()
    assert masked.gradients.buffers_digest() == first
    flip(getattr(masked.model, name))
    masked.gradients.start_step()
    assert masked.gradients.buffers_digest() != first
    assert torch.equal(remembered(masked, name), getattr(masked.model, name))
    flip(getattr(masked.model, name))
    masked.gradients.start_step()
    assert masked.gradients.buffers_digest() == first


def test_the_digest_of_a_large_buffer_that_nothing_changes_is_taken_once(masked: Replica) -> None:
    first = masked.gradients.buffers_digest()
    flip(remembered(masked, "mask"))
    assert masked.gradients.buffers_digest() == first, "that is for the digest of the whole state to find"
    flip(remembered(masked, "mean"))
    assert masked.gradients.buffers_digest() != first


@pytest.mark.parametrize("name", ["mask", "table"])
def test_a_large_buffer_that_a_shard_changes_is_digested_as_it_was_when_the_shard_began(
    masked: Replica, name: str
) -> None:
    first = masked.gradients.buffers_digest()
    flip(remembered(masked, name))
    run(masked, 0, lambda model: getattr(model, name).data.fill_(1))
    assert masked.gradients.buffers_digest() != first


@pytest.mark.parametrize("name", ["mask", "table"])
def test_a_large_buffer_that_shards_of_others_have_changed_is_digested_in_every_step_from_then_on(
    masked: Replica, name: str
) -> None:
    layout = masked.layout
    value = torch.ones(LARGE_BYTES, dtype=torch.bool)
    integers = {0: raw_bytes(value)} if name == "mask" else {}
    mask = 0 if name == "mask" else 1 << [entry.name for entry in layout.entries].index("table")
    masked.gradients.take(torch.ones(layout.size), 1.0, mask, integers)
    assert getattr(masked.model, name).all()
    masked.gradients.start_step()
    first = masked.gradients.buffers_digest()
    flip(remembered(masked, name))
    assert masked.gradients.buffers_digest() != first


def test_zeros_of_another_sign_are_another_content(masked: Replica) -> None:
    """They compare as equal; but bits are what members agree on."""
    masked.model.table.data.neg_()  # type: ignore[union-attr,operator]
    first = masked.gradients.buffers_digest()
    masked.start([0, 1])
    assert masked.gradients.buffers_digest() != first
    run(masked, 0, nothing)
    assert torch.signbit(masked.model.table).all()  # type: ignore[arg-type]
