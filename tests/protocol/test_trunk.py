"""The trunk: one path through any history of claims, and nothing that somebody went back behind."""

from collections.abc import Collection
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.protocol.trunk import Base, Checkpoint, Origin, before_claim, comes_too_late, walk_trunk


def trunk(
    bases: dict[int, Base], checkpoints: list[Checkpoint], back: Collection[int] = (), founded: int = 0
) -> list[tuple[int, int]]:
    found = walk_trunk(
        bases,
        checkpoints,
        lambda number: bases.get(number, "unknown"),
        lambda number: number in back,
        founded,
    )
    return [tuple(checkpoint) for checkpoint in found]


def test_an_empty_vault_has_none() -> None:
    assert trunk({}, []) == []
    assert trunk({1: None}, []) == []


def test_going_on_and_going_back() -> None:
    made = [Checkpoint(1, 10), Checkpoint(1, 20), Checkpoint(2, 30), Checkpoint(2, 40), Checkpoint(3, 35)]
    bases: dict[int, Base] = {1: None, 2: Checkpoint(1, 20)}
    assert trunk(bases, made[:4]) == [(2, 40), (2, 30), (1, 20), (1, 10)]
    bases[3] = Checkpoint(2, 30)
    assert trunk(bases, made) == [(3, 35), (2, 30), (1, 20), (1, 10)]
    late = [*made, Checkpoint(2, 50), Checkpoint(1, 25)]
    assert trunk(bases, late) == trunk(bases, made), "what a cut-off writer puts late is off the trunk"
    bases[4] = None
    assert trunk(bases, late, back=[4]) == [], "a fresh start goes on from nothing"


def test_a_claim_counts_from_its_first_checkpoint_on() -> None:
    """Its maker may have died before it found that a newer checkpoint had been committed meanwhile
    (simulator, seeds 931 and 1585)."""
    made = [Checkpoint(1, 10), Checkpoint(1, 20)]
    bases: dict[int, Base] = {1: None, 2: Checkpoint(1, 10), 3: None}
    assert trunk(bases, made) == [(1, 20), (1, 10)]
    assert trunk(bases, made, back=[2]) == [(1, 10)], "unless somebody went back on purpose"
    assert trunk(bases, [*made, Checkpoint(2, 15)]) == [(2, 15), (1, 10)]


def test_a_claim_that_the_run_has_begun_under_counts_at_once() -> None:
    """What a writer that was cut off commits after that is late, though nothing else has been saved."""
    made = [Checkpoint(1, 10), Checkpoint(1, 20)]
    bases: dict[int, Base] = {1: None, 2: Checkpoint(1, 10), 3: Checkpoint(1, 10)}
    assert trunk(bases, made, founded=2) == [(1, 10)], "claim 3 was never begun under"
    assert trunk(bases, made) == [(1, 20), (1, 10)], "another run knows only what lies in the storage"
    assert trunk(bases, [*made, Checkpoint(3, 15)], founded=2) == [(3, 15), (1, 10)]
    assert trunk({**bases, 2: "unknown"}, made, founded=2) == [(1, 20), (1, 10)], "it cannot be read any more"
    before = before_claim(3, bases, made, lambda claim: bases[claim], founded=2)
    assert list(before) == [(1, 10)]


def test_a_claim_that_was_gone_on_from_counts_though_its_checkpoints_were_pruned() -> None:
    bases: dict[int, Base] = {1: None, 2: Checkpoint(1, 10), 3: Checkpoint(2, 30)}
    made = [Checkpoint(1, 10), Checkpoint(1, 20), Checkpoint(3, 40)]
    assert trunk(bases, made) == [(3, 40), (1, 10)]


def test_only_of_one_run_can_a_claim_come_too_late() -> None:
    assert comes_too_late(Origin("run", 3), Origin("run", 5))
    assert not comes_too_late(Origin("run", 5), Origin("run", 5)), "its maker has looked again"
    assert not comes_too_late(Origin("run", 6), Origin("run", 5))
    assert not comes_too_late(Origin("another", 3), Origin("run", 5)), "each run counts its own views"


def test_a_pruned_base_still_says_where_it_was() -> None:
    made = [Checkpoint(1, 10), Checkpoint(1, 30)]
    assert trunk({1: None, 2: Checkpoint(1, 20)}, made, back=[2]) == [(1, 10)]


def test_a_claim_that_cannot_be_read_goes_on_from_the_one_before() -> None:
    made = [Checkpoint(1, 10), Checkpoint(1, 20), Checkpoint(3, 30)]
    bases: dict[int, Base] = {1: None, 2: Checkpoint(1, 10), 3: "unknown"}
    made.append(Checkpoint(2, 15))
    assert trunk(bases, made) == [(3, 30), (2, 15), (1, 10)]
    del bases[3]
    assert trunk(bases, made) == [(3, 30), (2, 15), (1, 10)], "a lost claim is known from its checkpoints"


@dataclass
class History:
    """A run's life as it happens: the model that the trunk is compared with."""

    bases: dict[int, Base] = field(default_factory=dict)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    paths: dict[int, list[Checkpoint]] = field(default_factory=dict)
    """For each claim, what its holder has gone through, oldest first."""


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_the_trunk_is_what_the_newest_holder_went_through(data: st.DataObject) -> None:
    history = History()
    for number in range(1, data.draw(st.integers(1, 6)) + 1):
        before = data.draw(st.sampled_from([None, *history.checkpoints]))
        history.bases[number] = before
        path = history.paths[number] = []
        if before:
            path += [c for c in history.paths[before.claim] if c <= before or c.claim != before.claim]
        step = before.step if before else 0
        for gap in data.draw(st.lists(st.integers(1, 5), max_size=4)):
            step += gap
            path.append(Checkpoint(number, step))
            history.checkpoints.append(Checkpoint(number, step))
        if number > 1 and data.draw(st.booleans()):
            # An earlier holder, cut off, commits once more; nobody went on from that.
            late = data.draw(st.integers(1, number - 1))
            last = max((c.step for c in history.checkpoints if c.claim == late), default=0)
            if any(base and base.claim == late for base in history.bases.values()):
                history.checkpoints.append(Checkpoint(late, last + 1))
                history.paths[late].append(Checkpoint(late, last + 1))
    newest = max(history.bases)
    if not any(checkpoint.claim == newest for checkpoint in history.checkpoints):
        # Then it does not count yet, and neither do those before it that have none.
        newest = max((checkpoint.claim for checkpoint in history.checkpoints), default=0)
    if not newest:
        assert trunk(history.bases, history.checkpoints) == []
        return
    assert trunk(history.bases, history.checkpoints) == [tuple(c) for c in reversed(history.paths[newest])]


def test_before_a_claim_counts_what_was_committed_until_then_and_nothing_of_it() -> None:
    bases: dict[int, Base] = {1: None, 2: Checkpoint(1, 10), 3: None}
    made = [Checkpoint(1, 10), Checkpoint(1, 20), Checkpoint(2, 30), Checkpoint(3, 5)]

    def before(number: int) -> list[Checkpoint]:
        return list(before_claim(number, bases, made, lambda claim: bases[claim]))

    assert before(1) == []
    assert before(2) == [(1, 20), (1, 10)], "the holder of claim 1 committed step 20 while claim 2 was made"
    assert before(3) == [(2, 30), (1, 10)]
    assert before(4) == [(3, 5)]
