from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.errors import ConfigError, UsageError
from outlast.train.sampling import SampleOrder, Span

orders = st.builds(
    SampleOrder,
    length=st.integers(1, 200),
    global_batch=st.integers(1, 50),
    seed=st.integers(0, 1000),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
).filter(lambda order: order.steps_per_pass > 0)


@given(order=orders, shard_count=st.integers(1, 12))
def test_a_pass_uses_each_sample_once(order: SampleOrder, shard_count: int) -> None:
    for pass_ in range(2):
        steps = range(1 + pass_ * order.steps_per_pass, 1 + (pass_ + 1) * order.steps_per_pass)
        taken = [order.samples(step, shard, shard_count) for step in steps for shard in range(shard_count)]
        assert {samples.pass_ for samples in taken} == {pass_}
        uses = Counter(index for samples in taken for index in samples.indices)
        assert set(uses.values()) == {1}
        assert len(uses) == order.samples_per_pass
        if not order.drop_last:
            assert set(uses) == set(range(order.length))


@given(order=orders, shard_count=st.integers(1, 12), step=st.integers(1, 10**9))
def test_shards_are_contiguous_and_even(order: SampleOrder, shard_count: int, step: int) -> None:
    shards = order.shards_of(step, shard_count)
    span = order.span(step)
    joined = [position for shard in shards for position in shard]
    assert joined == list(range(span.offset, span.offset + span.size))
    sizes = [len(shard) for shard in shards]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1


@given(order=orders, step=st.integers(1, 1000), one=st.integers(1, 12), other=st.integers(1, 12))
def test_the_samples_of_a_step_do_not_depend_on_the_number_of_shards(
    order: SampleOrder, step: int, one: int, other: int
) -> None:
    def joined(shard_count: int) -> list[int]:
        return [i for shard in range(shard_count) for i in order.samples(step, shard, shard_count).indices]

    assert joined(one) == joined(other)


def test_the_last_batch_of_a_pass_is_short() -> None:
    order = SampleOrder(length=10, global_batch=4)
    assert [order.span(step) for step in range(1, 5)] == [
        Span(0, 0, 4),
        Span(0, 4, 4),
        Span(0, 8, 2),
        Span(1, 0, 4),
    ]


def test_the_last_batch_of_a_pass_can_be_dropped() -> None:
    order = SampleOrder(length=10, global_batch=4, drop_last=True)
    assert [order.span(step) for step in range(1, 4)] == [Span(0, 0, 4), Span(0, 4, 4), Span(1, 0, 4)]


def test_a_short_batch_leaves_the_last_shards_empty() -> None:
    order = SampleOrder(length=6, global_batch=4, shuffle=False)
    assert order.shards_of(2, 4) == [range(4, 5), range(5, 6), range(6, 6), range(6, 6)]
    assert order.samples(2, 3, 4).indices == ()


def test_without_shuffling_a_pass_is_read_in_order() -> None:
    order = SampleOrder(length=6, global_batch=4, shuffle=False)
    assert order.samples(4, 0, 1) == (1, (4, 5))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"length": 0, "global_batch": 1}, "empty"),
        ({"length": 5, "global_batch": 0}, "global_batch = 0"),
        ({"length": 5, "global_batch": 2.0}, "global_batch = 2.0"),
        ({"length": 5, "global_batch": 2, "seed": -1}, "seed = -1"),
        ({"length": 5, "global_batch": 6, "drop_last": True}, "every batch would be dropped"),
    ],
)
def test_settings_that_cannot_work_are_named(settings: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SampleOrder(**settings).validate()


@pytest.mark.parametrize(("step", "shard"), [(0, 0), (-1, 0), (1, 2), (1, -1)])
def test_steps_and_shards_that_do_not_exist_are_refused(step: int, shard: int) -> None:
    with pytest.raises(UsageError, match="There is no"):
        SampleOrder(length=5, global_batch=2).samples(step, shard, 2)
