"""One attempt at a step, with members that call each other instead of sending."""

import random
from collections import deque
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from outlast.errors import ProtocolError
from outlast.mesh.round import Plan, Round, Scratch, fold
from outlast.protocol.kinds import NodeNote, PartNote
from outlast.protocol.tree import Node, children, cover, fold_order, root
from outlast.protocol.views import Member, View

BUCKETS = ((0, 7), (7, 8), (8, 40))
SIZE = 40


def view_of(shards: Sequence[int], slices: Sequence[int]) -> View:
    return View(
        number=3,
        members=tuple(Member(replica, 1) for replica in sorted(slices)),
        shards=tuple(shards),
        slices=tuple(slices),
    )


def reference(node: Node, leaves: Sequence[Tensor]) -> Tensor:
    """The sum by the book: a node is its left child plus its right child."""
    parts = children(node)
    return leaves[node.lo] if not parts else reference(parts[0], leaves) + reference(parts[1], leaves)


class Team:
    """All members of a view. Frames between two members stay in order; otherwise any may come first."""

    def __init__(self, view: View, *, seed: int = 0, buckets: Sequence[tuple[int, int]] = BUCKETS) -> None:
        self._rng = random.Random(seed)
        self._pipes: dict[tuple[int, int], deque[tuple[str, int, Node | None, bytes]]] = {}
        self.rounds = {replica: self._round(view, replica, buckets) for replica in view.slices}
        self.result_count = 0

    def _round(self, view: View, replica: int, buckets: Sequence[tuple[int, int]]) -> Round:
        def scatter(owner: int, bucket: int, node: Node, memory: memoryview, keep: object) -> None:
            self._pipe(replica, owner).append(("scatter", bucket, node, bytes(memory)))

        def result(bucket: int, memory: memoryview) -> None:
            self.result_count += 1
            for owner in view.slices:
                if owner != replica:
                    self._pipe(replica, owner).append(("result", bucket, None, bytes(memory)))

        return Round(
            Plan(view, replica, buckets),
            7,
            scratch=Scratch(torch.float32),
            vector=lambda: torch.full((SIZE,), float("nan")),
            scatter=scatter,
            result=result,
            merge=lambda _, one, other: max(one, other),
        )

    def _pipe(self, sender: int, to: int) -> deque[tuple[str, int, Node | None, bytes]]:
        return self._pipes.setdefault((sender, to), deque())

    def deliver_all(self) -> None:
        while waiting := [pair for pair, frames in self._pipes.items() if frames]:
            sender, to = self._rng.choice(waiting)
            what, bucket, node, payload = self._pipes[sender, to].popleft()
            receive(self.rounds[to], what, sender, bucket, node, payload, in_place=self._rng.random() < 0.5)

    def contribute(self, leaves: Sequence[Tensor]) -> None:
        todo = [
            (round_, node, bucket)
            for round_ in self.rounds.values()
            for node in round_.plan.cover[round_.plan.replica]
            for bucket in range(len(round_.plan.bounds))
        ]
        self._rng.shuffle(todo)
        for round_, node, bucket in todo:
            round_.own(node, bucket, reference(node, leaves))
            if self._rng.random() < 0.3:
                self.deliver_all()
        self.deliver_all()


def receive(
    round_: Round, what: str, sender: int, bucket: int, node: Node | None, payload: bytes, *, in_place: bool
) -> None:
    """As the engine does it: into the slot, or, if the frame was held, from memory of its own."""
    source = memoryview(bytearray(payload))
    if what == "scatter":
        assert node is not None
        if in_place:
            slot = round_.scatter_slot(sender, bucket, node, len(payload))
            slot[:] = source
            source = slot
        round_.scattered(sender, bucket, node, source)
    else:
        if in_place:
            slot = round_.result_slot(sender, bucket, len(payload))
            slot[:] = source
            source = slot
        round_.resulted(sender, bucket, source)


def random_view(rng: random.Random) -> View:
    slices = rng.sample(range(9), rng.randrange(1, 7))
    # A member may well hold no shard at all.
    return view_of([rng.choice(slices) for _ in range(rng.randrange(1, 14))], slices)


def leaves_of(view: View, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-9, 9, (len(view.shards), SIZE), generator=generator)
    return list(torch.randn(len(view.shards), SIZE, generator=generator) * 2.0**exponents)


@pytest.mark.parametrize("seed", range(60))
def test_every_member_gets_the_sum_by_the_book(seed: int) -> None:
    view = random_view(random.Random(seed))
    leaves = leaves_of(view, seed)
    team = Team(view, seed=seed)
    team.contribute(leaves)
    expected = reference(root(len(leaves)), leaves)
    for round_ in team.rounds.values():
        round_.concluded()
        assert torch.equal(round_.record, expected)


def test_the_sum_does_not_depend_on_who_holds_what() -> None:
    rng = random.Random(5)
    leaves = [torch.randn(SIZE) for _ in range(11)]
    found = set()
    for _ in range(20):
        slices = rng.sample(range(6), rng.randrange(1, 6))
        team = Team(view_of([rng.choice(slices) for _ in leaves], slices))
        team.contribute(leaves)
        found.update(bytes(round_.record.view(torch.uint8).tolist()) for round_ in team.rounds.values())
    assert len(found) == 1


def test_of_a_bucket_that_is_sent_again_the_last_one_counts() -> None:
    view = view_of([0, 1, 2, 1], [0, 1, 2])
    leaves = leaves_of(view, 1)
    team = Team(view)
    team.contribute([*leaves[:3], leaves[3] + 1])
    results = team.result_count
    team.rounds[1].own(Node(3, 4), 2, leaves[3])
    team.rounds[1].own(Node(3, 4), 0, leaves[3])
    team.deliver_all()
    assert team.result_count == results + 6, "each owner of a part of these two buckets folds it again"
    team.rounds[1].own(Node(3, 4), 1, leaves[3])
    team.deliver_all()
    for round_ in team.rounds.values():
        assert torch.equal(round_.record, reference(root(4), leaves))


def test_contributions_stay_as_they_are() -> None:
    leaves = [torch.randn(5) for _ in range(6)]
    copies = [leaf.clone() for leaf in leaves]
    nodes = {Node(index, index + 1): leaf for index, leaf in enumerate(leaves)}
    out = torch.empty(5)
    for _ in range(2):
        fold(nodes, fold_order(nodes, 6), out)
        assert torch.equal(out, reference(root(6), leaves))
    assert all(torch.equal(one, other) for one, other in zip(leaves, copies, strict=True))


def test_slices_that_are_empty_are_neither_sent_nor_waited_for() -> None:
    view = view_of([0, 1, 2], [0, 1, 2])
    team = Team(view, buckets=((0, 1), (1, SIZE)))
    leaves = leaves_of(view, 2)
    team.contribute(leaves)
    for round_ in team.rounds.values():
        round_.concluded()
        assert torch.equal(round_.record, reference(root(3), leaves))


def test_a_member_alone_sends_nothing() -> None:
    team = Team(view_of([4, 4, 4], [4]))
    leaves = [torch.randn(SIZE) for _ in range(3)]
    team.contribute(leaves)
    team.rounds[4].concluded()
    assert team.result_count == 0
    assert torch.equal(team.rounds[4].record, reference(root(3), leaves))


@pytest.fixture
def round_() -> Round:
    """Replica 0 of three, of which 1 holds the shards 2 and 3."""
    return Team(view_of([0, 0, 1, 1, 2], [0, 1, 2])).rounds[0]


def test_who_sends_what_is_not_its_part_is_refused(round_: Round) -> None:
    good = Node(2, 4)
    size = len(round_.scatter_slot(1, 2, good, 40))
    for sender, node in ((2, good), (1, Node(2, 3)), (1, Node(0, 2)), (0, good), (1, Node(4, 5)), (7, good)):
        with pytest.raises(ProtocolError, match="not its part"):
            round_.scatter_slot(sender, 2, node, size)


@pytest.mark.parametrize("size", [0, 1, 39, 41, 1 << 20])
def test_a_frame_of_the_wrong_size_is_refused(round_: Round, size: int) -> None:
    with pytest.raises(ProtocolError, match="bytes for a slice"):
        round_.scatter_slot(1, 2, Node(2, 4), size)
    with pytest.raises(ProtocolError, match="bytes for a slice"):
        round_.scattered(1, 2, Node(2, 4), memoryview(bytearray(size)))
    with pytest.raises(ProtocolError, match="bytes for a slice"):
        round_.result_slot(1, 2, size)
    with pytest.raises(ProtocolError, match="bytes for a slice"):
        round_.resulted(1, 2, memoryview(bytearray(size)))


@pytest.mark.parametrize("bucket", [3, 65535])
def test_a_bucket_that_does_not_exist_is_refused(round_: Round, bucket: int) -> None:
    with pytest.raises(ProtocolError, match=f"no bucket {bucket}"):
        round_.scatter_slot(1, bucket, Node(2, 4), 8)
    with pytest.raises(ProtocolError, match=f"no bucket {bucket}"):
        round_.result_slot(1, bucket, 8)


def test_a_result_of_one_who_owns_no_slice_is_refused(round_: Round) -> None:
    with pytest.raises(ProtocolError):
        round_.result_slot(7, 2, 40)


def test_parts_without_their_contributions_are_noticed(round_: Round) -> None:
    round_.own(Node(0, 2), 2, torch.ones(SIZE))
    with pytest.raises(ProtocolError, match=r"step 7: .*bucket 0 .*\(2, 4\), \(4, 5\)"):
        round_.concluded()


def test_what_the_parts_say_is_added_up_along_the_same_tree() -> None:
    weights = [0.1, 0.2, 0.3, 0.7, 0.9]
    view = view_of([0, 1, 0, 1, 2], [0, 1, 2])
    round_ = Team(view).rounds[0]
    for replica in view.slices:
        shards = [shard for shard, holder in enumerate(view.shards) if holder == replica]
        round_.parts[replica] = PartNote(
            nodes=tuple(
                NodeNote(
                    node.lo,
                    node.hi,
                    weights[node.lo],
                    weights[node.lo] * 3,
                    bytes([1 << node.lo]),
                    {0: bytes([node.lo])} if node.lo else {},
                )
                for node in cover(shards, 5)
            )
        )
    note = round_.note()
    assert note.weight == ((0.1 + 0.2) + (0.3 + 0.7)) + 0.9
    assert note.mask == bytes([0b11111])
    assert note.integers == {0: bytes([4])}
    assert (note.view, note.shards) == (3, view.shards)


def test_scratch_memory_is_used_again() -> None:
    scratch = Scratch(torch.float32)
    first = scratch.take(5)
    scratch.give_back(first)
    assert scratch.take(4) is not first
    assert scratch.take(5) is first
    assert scratch.take(5) is not first
