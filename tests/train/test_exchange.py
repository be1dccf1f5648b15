"""The members' side of a step: frames of old views count for nothing, those of later ones wait."""

import pytest
import torch
from torch import nn

from outlast.errors import ProtocolError
from outlast.protocol.header import Header
from outlast.protocol.kinds import Kind, NodeNote, PartNote
from outlast.protocol.seams import Said
from outlast.protocol.tree import Node
from outlast.protocol.views import Member, View
from outlast.train.exchange import ROUNDS_MOST, Exchange
from outlast.train.flats import FlatPool
from outlast.train.layout import Layout
from outlast.train.sums import NodeSum

LAYOUT = Layout(nn.Linear(5, 4, bias=False))
POOL = FlatPool(LAYOUT.size, LAYOUT.dtype)
ME, PEER = Member(0, 1), Member(1, 1)


class Sent(list[tuple[int, Header, bytes]]):
    """Remembers what was sent, and like a queue keeps what has to live until it has left."""

    def __init__(self) -> None:
        self.kept: list[object] = []

    def __call__(self, replica: int, header: Header, memory: memoryview, keep: object, _more: bool) -> None:
        self.append((replica, header, bytes(memory)))
        self.kept.append(keep)


def view(number: int, *, members: tuple[Member, ...] = (ME, PEER)) -> View:
    replicas = tuple(member.replica for member in members)
    shards = (0, 1) if len(members) == 2 else (replicas[0],) * 2
    return View(number=number, members=members, shards=shards, slices=replicas)


def exchange_in(number: int) -> tuple[Exchange, Sent]:
    sent = Sent()
    exchange = Exchange(LAYOUT, 0, POOL)
    exchange.ship = sent
    exchange.adopt(view(number))
    return exchange, sent


def contribution(shard: int, value: float) -> NodeSum:
    flat = POOL.take().fill_(value)
    return NodeSum(Node(shard, shard + 1), flat, weight=1.0, loss=value, mask=1)


def scatter(view_number: int, step: int = 1) -> Header:
    return Header(Kind.SCATTER, incarnation=1, view=view_number, step=step, lo=1, hi=2, size=40)


def deliver(exchange: Exchange, header: Header, payload: object) -> None:
    exchange.deliver(1, header, payload)


def floats(value: float) -> memoryview:
    return memoryview(bytearray(torch.full((10,), value).numpy().tobytes()))


def part_of_the_peer() -> PartNote:
    return PartNote(nodes=(NodeNote(1, 2, 1.0, 2.0, b"\x01", {}),))


def test_one_step_from_contributions_to_the_record() -> None:
    exchange, sent = exchange_in(3)
    exchange.contribute(1, [contribution(0, 1.0)], Said())
    [(to, header, _)] = sent
    assert (to, header.kind, header.view, header.step, header.size) == (1, Kind.SCATTER, 3, 1, 40)
    slot = exchange.destination(PEER, scatter(3))
    assert slot is not None
    slot[:] = floats(2.0)
    deliver(exchange, scatter(3), slot)
    assert (sent[1][0], sent[1][1].kind, sent[1][2]) == (1, Kind.RESULT, bytes(floats(3.0)))
    result = Header(Kind.RESULT, incarnation=1, view=3, step=1, size=40)
    slot = exchange.destination(PEER, result)
    assert slot is not None
    slot[:] = floats(3.0)
    deliver(exchange, result, slot)
    deliver(exchange, Header(Kind.PART, view=3, step=1), part_of_the_peer())
    exchange.round(1).concluded()
    record = exchange.record(1)
    assert torch.equal(record.vector, torch.full((20,), 3.0))
    assert (record.step, record.note.weight, record.note.mean_loss, record.note.shards) == (
        1,
        2.0,
        1.5,
        (0, 1),
    )


def test_a_bucket_that_went_ahead_is_not_sent_again() -> None:
    exchange, sent = exchange_in(3)
    mine = contribution(0, 1.0)
    exchange.bucket(1, mine, 0)
    exchange.contribute(1, [mine], Said())
    assert len(sent) == 1


def test_bulk_of_an_older_view_has_no_place() -> None:
    exchange, _ = exchange_in(3)
    assert exchange.destination(PEER, scatter(2)) is None


def test_bulk_of_a_later_view_is_kept_apart_until_then() -> None:
    exchange, _ = exchange_in(3)
    held = exchange.destination(PEER, scatter(4))
    assert held is not None
    held[:] = floats(2.0)
    exchange.contribute(1, [contribution(0, 1.0)], Said())
    exchange.adopt(view(4))
    exchange.contribute(1, [contribution(0, 5.0)], Said())
    deliver(exchange, scatter(4), held)
    assert torch.equal(exchange.round(1).record[:10], torch.full((10,), 7.0))


def test_a_new_view_voids_every_attempt() -> None:
    exchange, sent = exchange_in(3)
    exchange.contribute(1, [contribution(0, 1.0)], Said())
    exchange.adopt(view(4))
    assert not exchange.round(1).parts
    exchange.contribute(1, [contribution(0, 1.0)], Said())
    assert [header.view for _, header, _ in sent] == [3, 4]


def test_one_who_is_no_member_takes_no_part() -> None:
    exchange, _ = exchange_in(3)
    exchange.adopt(view(4, members=(PEER,)))
    assert not exchange.in_view
    deliver(exchange, scatter(4), floats(1.0))
    with pytest.raises(AssertionError):
        _ = exchange.plan


def test_more_bytes_than_a_gradient_are_refused_whatever_the_view() -> None:
    exchange, _ = exchange_in(3)
    for number in (3, 4):
        with pytest.raises(ProtocolError, match="more than a gradient"):
            exchange.destination(PEER, scatter(number)._replace(size=1 << 29))


def test_a_peer_may_be_a_step_ahead() -> None:
    exchange, _ = exchange_in(3)
    deliver(exchange, scatter(3, step=2), floats(2.0))
    deliver(exchange, scatter(3, step=1), floats(4.0))
    exchange.contribute(1, [contribution(0, 1.0)], Said())
    exchange.contribute(2, [contribution(0, 1.0)], Said())
    assert exchange.round(1).record[0] == 5.0
    assert exchange.round(2).record[0] == 3.0


def test_what_waits_to_be_sent_is_not_written_to() -> None:
    exchange, sent = exchange_in(3)
    mine = contribution(0, 1.0)
    exchange.contribute(1, [mine], Said())
    POOL.give_back(mine.flat)
    other = POOL.take()
    assert other is not mine.flat
    sent.kept.clear()
    assert POOL.take() is mine.flat


def test_a_peer_that_runs_far_ahead_is_refused() -> None:
    exchange, _ = exchange_in(3)
    for step in range(1, ROUNDS_MOST + 1):
        exchange.destination(PEER, scatter(3, step))
    with pytest.raises(ProtocolError, match="far ahead"):
        exchange.destination(PEER, scatter(3, ROUNDS_MOST + 1))


def test_what_is_reduced_without_all_contributions_is_loud() -> None:
    exchange, _ = exchange_in(3)
    with pytest.raises(ProtocolError, match="all parts are in, but"):
        exchange.conclude(1)


def test_a_record_is_not_made_of_what_has_not_come() -> None:
    exchange, _ = exchange_in(3)
    exchange.contribute(1, [contribution(0, 1.0)], Said())
    with pytest.raises(ProtocolError, match="all sums are in, but of bucket 0 the result of replica"):
        exchange.record(1)
