"""When one that learns has waited long enough."""

from outlast.protocol.step_words import Mode
from outlast.protocol.steps import StepCore
from outlast.protocol.views import Member, View
from outlast.train.taking import Gap

LEARNING = View(number=1, lineage=1, members=(Member(0, 1),), learners=(Member(1, 1),), shards=(0,))


def learner(newest: int) -> StepCore:
    steps = StepCore(1)
    steps.adopt(LEARNING, in_band=False)
    steps.loaded(newest)
    assert steps.mode is Mode.LEARNING
    return steps


def test_one_that_has_all_that_there_is_lacks_nothing() -> None:
    steps, gap = learner(5), Gap()
    assert gap.lasts_s(steps, 0.0) == 0.0
    steps.offered(6)
    assert steps.newest == 6
    assert gap.lasts_s(steps, 100.0) == 0.0


def test_a_gap_counts_from_when_it_was_seen_and_for_one_record() -> None:
    steps, gap = learner(5), Gap()
    steps.offered(7)
    assert gap.lasts_s(steps, 10.0) == 0.0
    assert gap.lasts_s(steps, 12.0) == 2.0
    steps.offered(6)
    assert steps.newest == 7, "it has come after all"
    assert gap.lasts_s(steps, 13.0) == 0.0
    steps.offered(9)
    assert gap.lasts_s(steps, 14.0) == 0.0
    assert gap.lasts_s(steps, 15.0) == 1.0
