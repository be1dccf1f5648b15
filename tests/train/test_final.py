"""The state that is kept for those who come back after the last step."""

from typing import Any

import torch
from torch import nn

from outlast.protocol.header import Header
from outlast.protocol.inbox import Arrival
from outlast.protocol.kinds import Kind
from outlast.protocol.step_words import Pin
from outlast.protocol.views import Member
from outlast.state.contents import decode_image
from outlast.state.image import Assembly
from outlast.state.training import TrainingState
from outlast.train.final import FinalState


class Bulk:
    """All that a state that arrives needs of it."""

    def state(self, encoded: bytes) -> Assembly:
        return Assembly(decode_image(encoded))


BULK: Any = Bulk()


def header(kind: Kind, *, piece: int = 0, size: int = 0, final: bool = True) -> Header:
    return Header(kind, view=3, step=25, lo=piece, size=size, flags=int(final))


def state_of(model: nn.Module) -> TrainingState:
    return TrainingState(model, {}, {})


def given(kept: FinalState, *givers: int, final: bool = True) -> Arrival:
    pin = Pin(Member(9, 1), 25, givers)
    arrival = Arrival()
    for giver in givers:
        arrival.described(header(Kind.IMAGE, final=final or giver != givers[-1]), kept.image, BULK)
        for index, memory in kept.share(pin, giver):
            place = header(Kind.PIECE, piece=index, size=len(memory))
            slot = arrival.slot(place)
            assert slot is not None
            slot[:] = memory
            arrival.arrived(place)
    return arrival


def test_it_is_what_it_was_whatever_the_script_does_to_the_model() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    kept = FinalState(25, state_of(model), {})
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(7)
    arrival = given(kept, 0, 2)
    assert arrival.complete and arrival.final
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    assert isinstance(arrival.assembly, Assembly)
    state_of(other).load(arrival.assembly.image, arrival.assembly.tensors())
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.state_dict().items())


def test_it_is_final_only_if_all_who_give_it_say_so() -> None:
    kept = FinalState(25, state_of(nn.Linear(2, 2)), {})
    assert given(kept, 0, 1).final
    assert not given(kept, 0, 1, final=False).final
