"""Weights alone: a model takes them by name, and says what does not fit."""

import pytest
import torch
from torch import Tensor, nn

from outlast.errors import ConfigError, ProtocolError
from outlast.state.contents import decode_image, encode_image
from outlast.state.parts import holds_weights_only, model_tensors
from outlast.state.training import TrainingState
from outlast.state.weights import describe_weights


class Net(nn.Module):
    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(3, 3, dtype=dtype)
        self.norm = nn.BatchNorm1d(3, dtype=dtype)
        self.tied = nn.Linear(3, 3, bias=False, dtype=dtype)
        self.tied.weight = self.first.weight
        self.register_buffer("scratch", torch.full((2,), float(seed)), persistent=False)


def state_of(model: nn.Module) -> TrainingState:
    return TrainingState(model, {"main": torch.optim.AdamW(model.parameters())})


def take(model: nn.Module, weights: dict[str, Tensor]) -> TrainingState:
    state = state_of(model)
    image, tensors = describe_weights(weights)
    state.load(decode_image(encode_image(image)), tensors)
    return state


def test_a_state_dict_is_taken_and_the_rest_is_fresh() -> None:
    source, model = Net(1), Net(2)
    source.norm.running_mean += 3
    state = take(model, source.state_dict())
    for name, value in source.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    assert model.scratch[0] == 2, "what a state dict leaves out stays"
    assert not state.optimizers["main"].state and model.tied.weight is model.first.weight


@pytest.mark.parametrize("left_out", ["first.weight", "tied.weight"])
def test_one_of_several_names_is_enough(left_out: str) -> None:
    source, model = Net(1), Net(2)
    take(model, {name: value for name, value in source.state_dict().items() if name != left_out})
    assert torch.equal(model.first.weight, source.first.weight)


def test_two_names_of_one_tensor_must_agree() -> None:
    source, model = Net(1), Net(2)
    before = model.first.bias.clone()
    weights = {**source.state_dict(), "tied.weight": torch.zeros(3, 3)}
    with pytest.raises(ConfigError, match=r"first\.weight and tied\.weight are one tensor"):
        take(model, weights)
    assert torch.equal(model.first.bias, before), "nothing was changed"


def test_compiled_models_on_either_side() -> None:
    source, model = Net(1), Net(2)
    take(model, {f"_orig_mod.{name}": value for name, value in source.state_dict().items()})
    assert torch.equal(model.first.weight, source.first.weight)
    compiled = Net(3)
    take(torch.compile(compiled, backend="eager"), source.state_dict())  # type: ignore[arg-type]
    assert torch.equal(compiled.first.weight, source.first.weight)


def test_precision_may_differ() -> None:
    source, model = Net(1), Net(2, torch.bfloat16)
    take(model, source.state_dict())
    assert model.first.weight.dtype == torch.bfloat16
    assert torch.equal(model.first.weight, source.first.weight.bfloat16())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"other.weight": torch.ones(1)}, r"1 tensor is not in this model: other\.weight"),
        ({"first.bias": None}, r"1 tensor of this model is missing: first\.bias"),
        ({"norm.running_mean": None}, r"norm\.running_mean"),
        ({"first.bias": torch.ones(4)}, r"first\.bias \(\(4,\) there, \(3,\) here\)"),
        ({"norm.num_batches_tracked": torch.tensor(1.0)}, r"another kind of numbers"),
        ({"first.bias": torch.ones(3, dtype=torch.int64)}, r"another kind of numbers"),
    ],
)
def test_what_does_not_fit_is_said(changes: dict[str, Tensor | None], said: str) -> None:
    weights = {**Net(1).state_dict(), **changes}
    model = Net(2)
    before = model.first.weight.clone()
    with pytest.raises(ConfigError, match=said):
        take(model, {name: value for name, value in weights.items() if value is not None})
    assert torch.equal(model.first.weight, before)


def test_names_that_collide_are_refused() -> None:
    with pytest.raises(ConfigError, match="two tensors"):
        describe_weights({"a._orig_mod.b": torch.ones(1), "a.b": torch.ones(1)})


def test_what_is_what_in_an_image() -> None:
    image, _ = describe_weights({"b": torch.ones(1), "a": torch.ones(2)})
    assert holds_weights_only(image) and model_tensors(image) == {"b": 0, "a": 1}
    model = Net()
    whole, tensors = state_of(model).capture()
    assert not holds_weights_only(whole)
    names = model_tensors(whole)
    assert names.keys() == {*dict(model.named_parameters()), *dict(model.named_buffers())}
    assert tensors[names["first.bias"]] is model.first.bias


def test_strange_parts_are_a_protocol_error() -> None:
    from outlast.state.contents import lay_out
    from outlast.state.nodes import DictNode, Node, TensorNode, encode

    def image_of(node: Node) -> object:
        return model_tensors(lay_out([], encode(DictNode("dict", [("weights", node)])), b""))

    for node in (
        DictNode("dict", [(1, TensorNode(0))]),
        DictNode("dict", [("a", 1)]),
        DictNode("dict", [("a", TensorNode(0))]),
    ):
        with pytest.raises(ProtocolError):
            image_of(node)
    with pytest.raises(ProtocolError, match="parts"):
        model_tensors(lay_out([], encode(None), b""))
