"""Snapshots: shares of several givers become one state, and shares of two snapshots never mix."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from outlast.errors import ProtocolError
from outlast.protocol.header import Header
from outlast.protocol.inbox import Arrival
from outlast.protocol.kinds import Kind
from outlast.protocol.step_words import Pin
from outlast.protocol.views import Member
from outlast.state import image as images
from outlast.state.contents import decode_image
from outlast.state.digest import state_digest
from outlast.state.training import TrainingState
from outlast.train import snapshots
from outlast.train.snapshots import Gift

PIECE_BYTES = 256


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several pieces of a small state."""
    monkeypatch.setattr(snapshots, "pieces", lambda total: images.pieces(total, PIECE_BYTES))


class Bulk:
    """All that a state that arrives needs of it."""

    def state(self, encoded: bytes) -> images.Assembly:
        return images.Assembly(decode_image(encoded), PIECE_BYTES)


BULK: Any = Bulk()


def describe(arrival: Arrival, copied: Gift, *, view: int = 2) -> None:
    arrival.described(head(Kind.IMAGE, view=view), copied.image, BULK)


def load(arrival: Arrival, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    assembly = arrival.assembly
    assert isinstance(assembly, images.Assembly)
    state_of(model, optimizer).load(assembly.image, assembly.tensors())


def trained(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(6, 8)).square().mean().backward()
    optimizer.step()
    return model, optimizer


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> TrainingState:
    return TrainingState(model, {"optimizer": optimizer})


def pin(servers: tuple[int, ...], step: int = 5) -> Pin:
    return Pin(step=step, to=Member(9, 1), servers=servers)


def head(kind: Kind, index: int = 0, size: int = 0, *, view: int = 2, step: int = 5) -> Header:
    return Header(kind, view=view, step=step, lo=index, size=size)


def give(arrival: Arrival, copied: Gift, *, view: int = 2, skip: int = -1) -> bool:
    """Whether that completed it."""
    describe(arrival, copied, view=view)
    done = False
    for index, memory in copied.settle():
        if index == skip:
            continue
        header = head(Kind.PIECE, index, memory.nbytes, view=view)
        slot = arrival.slot(header)
        if slot is not None:
            slot[:] = memory
            done |= arrival.arrived(header)
    return done


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_the_shares_of_all_givers_are_the_state(count: int) -> None:
    model, optimizer = trained(1)
    servers = tuple(range(count))
    copies = [Gift(state_of(model, optimizer), pin(servers), replica, {}) for replica in servers]
    for copied in copies:
        copied.start()
        copied.settle()
    # A giver trains on while its share travels.
    expected = state_digest(model, optimizer)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    arrival = Arrival()
    assert [give(arrival, copied) for copied in copies] == [False] * (count - 1) + [True]
    assert arrival.complete and (arrival.view, arrival.step) == (2, 5)
    other, its_optimizer = trained(2)
    load(arrival, other, its_optimizer)
    assert state_digest(other, its_optimizer) == expected


def test_buffers_are_given_as_they_were_when_the_step_began() -> None:
    model, optimizer = trained(1)
    buffers = dict(model.named_buffers())
    before = {id(tensor): tensor.clone() for tensor in buffers.values()}
    expected = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        model[1].running_mean.add_(3)
    arrival = Arrival()
    assert give(arrival, Gift(state_of(model, optimizer), pin((0,)), 0, before))
    other, its_optimizer = trained(2)
    load(arrival, other, its_optimizer)
    assert torch.equal(other.state_dict()["1.running_mean"], expected["1.running_mean"])


def test_a_later_view_begins_anew_and_an_earlier_one_is_not_listened_to() -> None:
    old, new = (Gift(state_of(*trained(seed)), pin((0,)), 0, {}) for seed in (1, 2))
    arrival = Arrival()
    assert not give(arrival, old, view=2, skip=0)
    assert not give(arrival, new, view=3, skip=0)
    assert not give(arrival, old, view=2), "not even the piece that it lacks"
    assert arrival.view == 3
    assert give(arrival, new, view=3)
    other, its_optimizer = trained(3)
    load(arrival, other, its_optimizer)
    assert state_digest(other, its_optimizer) == state_digest(*trained(2))


def test_a_piece_before_its_description_has_no_place() -> None:
    arrival = Arrival()
    assert arrival.slot(head(Kind.PIECE, 0, PIECE_BYTES)) is None
    assert not arrival.arrived(head(Kind.PIECE, 0, PIECE_BYTES))
    assert not arrival.complete


def test_a_piece_of_the_wrong_size_or_number_is_refused() -> None:
    arrival = Arrival()
    describe(arrival, Gift(state_of(*trained(1)), pin((0,)), 0, {}))
    for wrong in (head(Kind.PIECE, 0, PIECE_BYTES - 1), head(Kind.PIECE, 10_000, PIECE_BYTES)):
        with pytest.raises(ProtocolError, match="after step 5 has a wrong size"):
            arrival.slot(wrong)


def test_members_whose_states_differ_are_noticed() -> None:
    model, optimizer = trained(1)
    arrival = Arrival()
    describe(arrival, Gift(state_of(model, optimizer), pin((0,)), 0, {}))
    optimizer.param_groups[0]["lr"] = 0.5
    with pytest.raises(ProtocolError, match="two members hold different states after step 5"):
        describe(arrival, Gift(state_of(model, optimizer), pin((0,)), 0, {}))


def test_a_complete_snapshot_is_complete_once() -> None:
    copied = Gift(state_of(*trained(1)), pin((0,)), 0, {})
    arrival = Arrival()
    assert give(arrival, copied)
    assert not give(arrival, copied)
    assert arrival.complete
