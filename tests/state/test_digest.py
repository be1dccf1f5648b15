"""The digest changes with every bit of the state, and with nothing else."""

import copy

import torch
from torch import nn

from outlast.state.digest import state_digest


def trained() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.arange(15.0).view(3, 5)).square().sum().backward()
    optimizer.step()
    return model, optimizer


def test_equal_states_have_equal_digests() -> None:
    assert state_digest(*trained()) == state_digest(*trained())
    model, _ = trained()
    assert state_digest(model) == state_digest(copy.deepcopy(model))


def test_every_single_bit_counts() -> None:
    seen = {state_digest(*trained())}
    model, optimizer = trained()
    tensors = [*model.parameters(), *model.buffers()]
    tensors += [t for values in optimizer.state.values() for t in values.values()]
    for tensor in tensors:
        raw = tensor.detach().view(-1).view(torch.uint8)
        raw[-1] ^= 1
        seen.add(state_digest(model, optimizer))
        raw[-1] ^= 1
    assert len(seen) == len(tensors) + 1
    assert state_digest(model, optimizer) in seen


def test_payloads_of_nan_and_signs_of_zero_count() -> None:
    def digest(bits: int) -> str:
        model = nn.Module()
        model.register_buffer("b", torch.tensor([bits], dtype=torch.int32).view(torch.float32))
        return state_digest(model)

    assert len({digest(bits) for bits in (0, -(2**31), 0x7FC00000, 0x7FC00001)}) == 4


def test_learning_rates_and_the_optimizers_order_count() -> None:
    model, optimizer = trained()
    before = state_digest(model, optimizer)
    optimizer.param_groups[0]["lr"] = 0.5
    assert state_digest(model, optimizer) != before
    other = torch.optim.SGD(model.parameters())
    assert state_digest(model, optimizer, other) != state_digest(model, other, optimizer)


def test_the_order_of_dicts_does_not_count() -> None:
    model, optimizer = trained()
    before = state_digest(model, optimizer)
    for parameter, values in reversed(list(optimizer.state.items())):
        del optimizer.state[parameter]
        optimizer.state[parameter] = dict(reversed(values.items()))
    group = optimizer.param_groups[0]
    for name in reversed(list(group)):
        group[name] = group.pop(name)
    model[0]._parameters = dict(reversed(model[0]._parameters.items()))
    # Positions in the optimizer are those of its own list, which did not change.
    assert state_digest(model, optimizer) == before


def test_looking_at_an_empty_state_does_not_count() -> None:
    model, _ = trained()
    optimizer = torch.optim.AdamW(model.parameters())
    before = state_digest(model, optimizer)
    assert optimizer.state[model[0].weight] == {}
    assert state_digest(model, optimizer) == before


def test_strides_do_not_count() -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(3, 4, 3)
    before = state_digest(model)
    assert state_digest(model.to(memory_format=torch.channels_last)) == before


def test_a_state_of_several_pieces_is_covered_to_its_end() -> None:
    model = nn.Module()
    model.register_buffer("b", torch.zeros((8 << 20) + 5, dtype=torch.uint8))
    before = state_digest(model)
    model.b[-1] = 1
    assert state_digest(model) != before
