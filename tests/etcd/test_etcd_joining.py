"""Which step comes next on the way into a cluster."""

import pytest
from etcd_pictures import member, picture

from outlast.errors import ConfigError, StoreError
from outlast.etcd.joining import Add, Ready, Remove, next_step
from outlast.etcd.places import parse_place

D = parse_place("d")
B = parse_place("b")


def test_a_new_one_is_added_and_then_only_has_to_be_started() -> None:
    assert next_step(picture("ab"), name="d", place=D, replace=False) == Add()
    added = member("d", started=False, learner=True)
    assert next_step(picture("ab", added), name="d", place=D, replace=False) == Ready(added)


def test_a_lost_one_is_removed_first() -> None:
    before = picture("aBc")
    assert next_step(before, name="b", place=B, replace=True) == Remove(before.members[1])
    assert next_step(picture("ac"), name="b", place=B, replace=True) == Add()
    elsewhere = parse_place("e")
    assert isinstance(next_step(before, name="b", place=elsewhere, replace=True), Remove)


def test_one_that_was_killed_between_two_steps_goes_on_where_it_was() -> None:
    added = member("b", started=False, learner=True)
    assert next_step(picture("ac", added), name="b", place=B, replace=True) == Ready(added)


def test_nobody_is_replaced_by_accident() -> None:
    with pytest.raises(ConfigError, match=r"a member b already, at b:2379.*--replace"):
        next_step(picture("aBc"), name="b", place=B, replace=False)
    with pytest.raises(ConfigError, match="b, which is to be replaced, answers at b:2379"):
        next_step(picture("abc"), name="b", place=B, replace=True)
    with pytest.raises(ConfigError, match="is in touch with the others"):
        next_step(picture("aBc"), name="b", place=B, replace=True, in_touch={str(ord("b"))})
    with pytest.raises(ConfigError, match="where member b of this cluster is"):
        next_step(picture("abc"), name="d", place=B, replace=False)


def test_without_a_majority_nothing_is_changed() -> None:
    with pytest.raises(StoreError, match=r"b cannot be replaced, since only 1 of 3 .*start b, c again"):
        next_step(picture("aBC"), name="b", place=B, replace=True)
    with pytest.raises(StoreError, match="d cannot be added, since only 1 of 2"):
        next_step(picture("aB"), name="d", place=D, replace=False)
