"""A training state that is captured, moved and loaded goes on exactly where the other one is."""

import copy
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import lr_scheduler

from outlast.errors import ConfigError, ProtocolError
from outlast.state.contents import Image, decode_image, encode_image
from outlast.state.digest import state_digest
from outlast.state.image import Assembly, copy_piece
from outlast.state.training import TrainingState


class Net(nn.Module):
    """A bit of everything: convolution, BatchNorm, tied weights, a buffer that state dicts leave out."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.conv = nn.Conv2d(1, 4, 3, dtype=dtype).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(4, dtype=dtype)
        self.first = nn.Linear(16, 16, dtype=dtype)
        self.second = nn.Linear(16, 16, bias=False, dtype=dtype)
        self.second.weight = self.first.weight
        self.register_buffer("average", torch.zeros((), dtype=torch.float64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).relu().flatten(1)
        self.average += x.detach().mean()
        return self.second(self.first(x))


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01), foreach=False),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.1),
    "groups": lambda p: torch.optim.AdamW([{"params": q, "weight_decay": i / 10} for i, q in enumerate(p)]),
}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, first: int = 0) -> None:
    dtype = next(model.parameters()).dtype
    for step in range(first, first + steps):
        x = torch.randn(4, 1, 4, 4, generator=torch.Generator().manual_seed(step)).to(dtype)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def moved(image: Image, tensors: list[Tensor]) -> tuple[Image, list[Tensor]]:
    """As a peer gets it: through bytes."""
    image = decode_image(encode_image(image))
    assembly = Assembly(image, 1000)
    for index, piece in enumerate(assembly.pieces):
        copy_piece(image, tensors, piece, assembly.slot(index))
        assembly.note(index)
    return image, assembly.tensors()


def sent(source: TrainingState, target: TrainingState) -> None:
    target.load(*moved(*source.capture()))


def content(state: TrainingState) -> bytes:
    image, tensors = state.capture()
    out = bytearray(image.total_bytes)
    copy_piece(image, tensors, range(image.total_bytes), memoryview(out))
    return encode_image(image) + out


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("trained_before", [0, 2])
def test_a_joiner_goes_on_bit_for_bit(name: str, dtype: torch.dtype, trained_before: int) -> None:
    model, joined = Net(0, dtype), Net(1, dtype)
    optimizer, other = OPTIMIZERS[name](model.parameters()), OPTIMIZERS[name](joined.parameters())
    train(model, optimizer, 3)
    train(joined, other, trained_before, first=50)
    source, target = TrainingState(model, {"main": optimizer}), TrainingState(joined, {"main": other})
    before = [*joined.parameters(), *joined.buffers()]
    sent(source, target)
    assert all(a is b for a, b in zip(before, [*joined.parameters(), *joined.buffers()], strict=True))
    assert content(source) == content(target)
    train(model, optimizer, 3, first=3)
    train(joined, other, 3, first=3)
    assert state_digest(model, optimizer) == state_digest(joined, other)
    assert joined.second.weight is joined.first.weight
    assert joined.average == model.average != 0


def test_float32_state_of_bfloat16_parameters_keeps_its_bits() -> None:
    def made() -> tuple[nn.Linear, torch.optim.Optimizer]:
        model = nn.Linear(3, 3, dtype=torch.bfloat16)
        return model, torch.optim.SGD(model.parameters(), momentum=0.9)

    (model, optimizer), (joined, other) = made(), made()
    for parameter in model.parameters():
        optimizer.state[parameter] = {
            "momentum_buffer": torch.rand(parameter.shape),
            "step": torch.tensor(3.0),
        }
    sent(TrainingState(model, {"o": optimizer}), TrainingState(joined, {"o": other}))
    for a, b in zip(model.parameters(), joined.parameters(), strict=True):
        assert other.state[b]["momentum_buffer"].dtype == torch.float32
        assert torch.equal(optimizer.state[a]["momentum_buffer"], other.state[b]["momentum_buffer"])
        assert other.state[b]["step"].dtype == torch.float32


def test_state_that_the_source_does_not_have_is_emptied() -> None:
    model, joined = Net(0), Net(1)
    optimizer, other = OPTIMIZERS["adam"](model.parameters()), OPTIMIZERS["adam"](joined.parameters())
    train(joined, other, 1)
    assert optimizer.state[next(model.parameters())] == {}
    source, target = TrainingState(model, {"o": optimizer}), TrainingState(joined, {"o": other})
    sent(source, target)
    assert not other.state and content(source) == content(target)


def test_nothing_that_was_loaded_shares_memory_with_where_it_came_from() -> None:
    model, joined = Net(0), Net(1)
    optimizer, other = OPTIMIZERS["adamw"](model.parameters()), OPTIMIZERS["adamw"](joined.parameters())
    train(model, optimizer, 1)
    keeper = Keeper(torch.ones(3))
    target = TrainingState(joined, {"o": other}, {"k": keeper})
    image, tensors = moved(*TrainingState(model, {"o": optimizer}, {"k": Keeper(torch.zeros(3))}).capture())
    target.load(image, tensors)
    before = content(target)
    for tensor in tensors:
        tensor.zero_().add_(1)
    assert content(target) == before


def test_moments_have_the_strides_of_their_weights() -> None:
    model, joined = Net(0), Net(1)
    optimizer, other = OPTIMIZERS["adam"](model.parameters()), OPTIMIZERS["adam"](joined.parameters())
    train(model, optimizer, 1)
    sent(TrainingState(model, {"o": optimizer}), TrainingState(joined, {"o": other}))
    assert other.state[joined.conv.weight]["exp_avg"].stride() == joined.conv.weight.stride()


def test_group_dicts_and_tensors_in_them_stay_the_same_objects() -> None:
    model, joined = Net(0), Net(1)
    optimizer, other = OPTIMIZERS["adamw"](model.parameters()), OPTIMIZERS["adamw"](joined.parameters())
    optimizer.param_groups[0]["lr"].fill_(0.5)
    group, rate = other.param_groups[0], other.param_groups[0]["lr"]
    target = TrainingState(joined, {"o": other})
    group["left over"] = 1
    sent(TrainingState(model, {"o": optimizer}), target)
    assert other.param_groups[0] is group and group["lr"] is rate and rate == 0.5
    assert "left over" not in group and len(group["params"]) == len(list(joined.parameters()))


def test_several_optimizers_are_kept_apart_in_any_order() -> None:
    def made(seed: int) -> tuple[Net, dict[str, torch.optim.Optimizer]]:
        model = Net(seed)
        return model, {
            "b": torch.optim.SGD(model.first.parameters(), lr=0.1, momentum=0.5),
            "a": torch.optim.Adam(model.conv.parameters()),
        }

    (model, optimizers), (joined, others) = made(0), made(1)
    for optimizer in optimizers.values():
        train(model, optimizer, 1)
    source = TrainingState(model, optimizers)
    target = TrainingState(joined, dict(reversed(others.items())))
    sent(source, target)
    assert content(source) == content(target)


class Keeper:
    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "step": lambda o: lr_scheduler.StepLR(o, 2),
    "milestones": lambda o: lr_scheduler.MultiStepLR(o, [1, 4, 4]),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, 30),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 7),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "warm-up": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1), lr_scheduler.ExponentialLR(o, 0.9)], [3]
    ),
}


@pytest.mark.filterwarnings("ignore:The epoch parameter in")
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_go_on_where_they_were(name: str) -> None:
    def made(seed: int) -> tuple[Net, torch.optim.Optimizer, Any, TrainingState]:
        model = Net(seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        schedule = SCHEDULES[name](optimizer)
        return model, optimizer, schedule, TrainingState(model, {"o": optimizer}, {"schedule": schedule})

    def go_on(model: Net, optimizer: torch.optim.Optimizer, schedule: Any, first: int) -> list[float]:
        rates = []
        for step in range(first, first + 4):
            train(model, optimizer, 1, step)
            schedule.step()
            rates.append(optimizer.param_groups[0]["lr"])
        return rates

    model, optimizer, schedule, source = made(0)
    joined, other, schedule_there, target = made(1)
    go_on(model, optimizer, schedule, 0)
    sent(source, target)
    assert go_on(model, optimizer, schedule, 4) == go_on(joined, other, schedule_there, 4)
    assert state_digest(model, optimizer) == state_digest(joined, other)
    # A process that describes itself in the middle of a schedule is still the same program.
    again = TrainingState(model, {"o": optimizer}, {"schedule": schedule})
    sent(again, target)


def test_a_schedule_that_sets_rates_when_loaded_does_not_get_the_last_word() -> None:
    class Eager(Keeper):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            other.param_groups[0]["lr"] = 77.0

    model, joined = Net(0), Net(1)
    optimizer, other = OPTIMIZERS["sgd"](model.parameters()), OPTIMIZERS["sgd"](joined.parameters())
    optimizer.param_groups[0]["lr"] = 0.25
    sent(
        TrainingState(model, {"o": optimizer}, {"e": Eager(1)}),
        TrainingState(joined, {"o": other}, {"e": Eager(1)}),
    )
    assert other.param_groups[0]["lr"] == 0.25


def test_overrides_take_the_place_of_live_tensors() -> None:
    model, joined = Net(0), Net(1)
    at_start = {id(buffer): buffer.clone() for buffer in model.buffers()}
    train(model, OPTIMIZERS["sgd"](model.parameters()), 2)
    source = TrainingState(model, {})
    target = TrainingState(joined, {})
    target.load(*moved(*source.capture(at_start)))
    assert torch.equal(joined.norm.running_mean, torch.zeros(4)) and joined.average == 0
    assert torch.equal(joined.conv.weight, model.conv.weight)
    with pytest.raises(ValueError, match="running_mean"):
        source.capture({id(model.norm.running_mean): torch.zeros(5)})


def test_a_compiled_model_and_an_eager_one_have_the_same_image() -> None:
    eager, joined = Net(0), Net(1)
    compiled = torch.compile(joined, backend="eager")
    compiled.conv = torch.compile(joined.conv, backend="eager")
    sent(TrainingState(eager, {}), TrainingState(compiled, {}))
    assert state_digest(compiled) == state_digest(eager)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, int] = {}

    def get_extra_state(self) -> dict[str, int]:
        return self.seen

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.seen = state


def test_what_modules_keep_outside_of_tensors_travels_too() -> None:
    model, joined = nn.Sequential(Counting()), nn.Sequential(Counting())
    model[0].seen["cats"] = 3
    sent(TrainingState(model, {}), TrainingState(joined, {}))
    assert joined[0].seen == {"cats": 3}


def test_buffers_of_every_making_are_state() -> None:
    def made(value: float) -> nn.Module:
        model = nn.Module()
        model.assigned = nn.Buffer(torch.full((2,), value))
        model.hidden = nn.Buffer(torch.full((2,), value), persistent=False)
        model.register_buffer("absent", None)
        return model

    joined = made(2)
    sent(TrainingState(made(1), {}), TrainingState(joined, {}))
    assert torch.equal(joined.assigned, torch.ones(2)) and torch.equal(joined.hidden, torch.ones(2))


def test_lbfgs_which_keeps_lists_of_tensors_goes_on_as_well() -> None:
    def made(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        model = nn.Linear(4, 1)
        return model, torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        def loss() -> Any:
            optimizer.zero_grad()
            value = (model(torch.arange(8.0).view(2, 4)) - 1).square().mean()
            value.backward()
            return value

        optimizer.step(loss)

    (model, optimizer), (joined, other) = made(0), made(1)
    step(model, optimizer)
    sent(TrainingState(model, {"o": optimizer}), TrainingState(joined, {"o": other}))
    step(model, optimizer)
    step(joined, other)
    assert state_digest(model, optimizer) == state_digest(joined, other)


# Refusals


def test_an_optimizer_over_parameters_elsewhere_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'main' trains 2 parameters .*\(3, 2\), \(3,\)"):
        TrainingState(Net(), {"main": torch.optim.SGD(nn.Linear(2, 3).parameters())})


def test_what_is_no_optimizer_is_refused() -> None:
    with pytest.raises(ConfigError, match="'main' is a Linear"):
        TrainingState(Net(), {"main": nn.Linear(1, 1)})  # type: ignore[dict-item]


def test_state_of_a_tensor_that_the_optimizer_does_not_have_is_refused() -> None:
    model = Net()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    optimizer.state[torch.zeros(9)] = {"x": 1}
    with pytest.raises(ConfigError, match=r"'o' has state for a tensor of shape \(9,\)"):
        TrainingState(model, {"o": optimizer})


@pytest.mark.parametrize("extra", [3, {"a": 1}, Keeper, object()])
def test_extras_without_the_two_methods_are_refused_by_key(extra: Any) -> None:
    with pytest.raises(ConfigError, match=r"'cursor' is a .* without a method state_dict"):
        TrainingState(Net(), {}, {"cursor": extra})


def test_extras_with_unfit_values_are_refused_at_construction() -> None:
    with pytest.raises(ConfigError, match=r"state\['cursor'\]\['value'\] is a value of type object"):
        TrainingState(Net(), {}, {"cursor": Keeper(object())})


def test_models_that_are_not_there_yet_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\['weight'\].*Run one batch"):
        TrainingState(nn.LazyLinear(3), {})
    with pytest.raises(ConfigError, match=r"model\['weight'\].*meta"):
        TrainingState(nn.Linear(3, 3, device="meta"), {})


def test_a_buffer_whose_elements_share_memory_is_refused() -> None:
    model = Net()
    model.register_buffer("wide", torch.zeros(1).expand(5))
    with pytest.raises(ConfigError, match=r"model\['wide'\] is an expanded tensor"):
        TrainingState(model, {})


def test_an_extra_that_refuses_leaves_the_weights_alone() -> None:
    class Picky(Keeper):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise KeyError("no")

    model, joined = Net(0), Net(1)
    before = state_digest(joined)
    with pytest.raises(ConfigError, match=r"'p' could not load.*KeyError"):
        sent(TrainingState(model, {}, {"p": Picky(1)}), TrainingState(joined, {}, {"p": Picky(1)}))
    assert state_digest(joined) == before


# Damage


def images() -> tuple[TrainingState, Image, list[Tensor]]:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = TrainingState(model, {"o": optimizer}, {"k": Keeper([1, (2, "x")])})
    return state, *state.capture()


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_a_damaged_state_is_refused_before_anything_changes_or_is_well_formed(data: st.DataObject) -> None:
    state, image, tensors = images()
    tensors = [tensor.clone() for tensor in tensors]
    part = data.draw(st.sampled_from(["plain", "structure"]))
    damaged = bytearray(getattr(image, part))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    before = content(state)
    try:
        state.load(msgspec.structs.replace(image, **{part: bytes(damaged)}), tensors)
    except (ProtocolError, ConfigError):
        assert content(state) == before


def test_tensors_that_do_not_fit_their_image_are_refused() -> None:
    state, image, tensors = images()
    with pytest.raises(ProtocolError, match="not those that its image describes"):
        state.load(image, tensors[:-1])
    with pytest.raises(ProtocolError, match="not those that its image describes"):
        state.load(image, [tensor.double() for tensor in tensors])


def test_a_deep_copy_of_a_program_can_load_from_the_original() -> None:
    model = Net()
    joined = copy.deepcopy(model)
    with torch.no_grad():
        model.first.bias += 1
    sent(TrainingState(model, {}), TrainingState(joined, {}))
    assert state_digest(model) == state_digest(joined)
