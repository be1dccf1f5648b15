"""Comparing states: what all parts together say, and what one life makes of it."""

from outlast.protocol.step_words import (
    BLANK,
    NO_FORK,
    Accused,
    Check,
    Differ,
    Digest,
    Dropped,
    Fork,
    Lost,
    Verdict,
    Verified,
)
from outlast.protocol.verifying import Verifying, Void, judge, judge_attempt

FORK = Fork(3, 4)


def test_a_state_is_chosen_when_somebody_thinks_it_is_time() -> None:
    assert judge({0: Check(), 1: Check(due=True)}, FORK) == Verdict(chosen=True, fork=FORK)
    assert judge({0: Check(), 1: Check()}, FORK) == Verdict(fork=FORK)


def test_one_alone_compares_nothing() -> None:
    assert judge({0: Check(due=True)}, NO_FORK) == Verdict()
    assert judge({0: Check(due=True), 1: None}, NO_FORK) == Verdict()


def test_nothing_is_chosen_while_another_state_is_being_compared() -> None:
    waits = {0: Check(7, b"a"), 1: Check(7, due=True)}
    assert judge(waits, NO_FORK) == Verdict()
    done = {0: Check(7, b"a", due=True), 1: Check(7, b"a")}
    assert judge(done, NO_FORK) == Verdict(chosen=True, verified=7, digest=b"a")


def test_who_was_not_there_is_left_out() -> None:
    assert judge({0: Check(7, b"a"), 1: Check(7, b"a"), 2: Check()}, NO_FORK).verified == 7  # type: ignore[union-attr]
    assert judge({0: Check(7, b"a"), 2: Check()}, NO_FORK) == Verdict(dropped=7)


def test_those_who_differ_from_a_majority_are_named() -> None:
    checks = {0: Check(7, b"a", 3), 1: Check(7, b"b", 3), 2: Check(7, b"a", 3)}
    void = judge(checks, NO_FORK)
    assert isinstance(void, Void)
    assert (void.step, void.members, void.back_to) == (7, (1,), 3)


def test_without_a_strict_majority_nobody_is_named() -> None:
    for digests in ([b"a", b"b"], [b"a", b"b", b"c"], [b"a", b"a", b"b", b"b"]):
        void = judge({i: Check(7, digest, 3) for i, digest in enumerate(digests)}, NO_FORK)
        assert isinstance(void, Void) and void.members == ()


def test_members_go_back_to_the_newest_state_of_which_anybody_has_a_copy() -> None:
    void = judge({0: Check(7, b"a", 3), 1: Check(7, b"b", BLANK)}, NO_FORK)
    assert isinstance(void, Void) and void.back_to == 3
    void = judge({0: Check(7, b"a"), 1: Check(7, b"b")}, NO_FORK)
    assert isinstance(void, Void) and void.back_to == BLANK


def compared(step: int, digest: bytes) -> Verifying:
    """One that has digested the state after this step."""
    life = Verifying()
    assert life.take(step, Verdict(chosen=True)) == [Digest(step)]
    assert life.digested(step, digest) == []
    return life


def test_a_verified_state_is_kept_to_go_back_to() -> None:
    life = compared(7, b"a")
    assert life.check(8, due=False) == Check(7, b"a", BLANK, due=True)
    assert life.take(9, Verdict(verified=7, digest=b"a")) == [Verified(7, kept=True)]
    assert life.check(9, due=False) == Check(verified=7)
    assert life.go_back(7)
    assert not life.go_back(5)
    assert life.verified == BLANK


def test_one_that_is_slow_keeps_its_copy_when_it_has_the_digest() -> None:
    life = Verifying()
    life.take(7, Verdict(chosen=True))
    assert life.take(9, Verdict(verified=7, digest=b"a")) == []
    assert life.digested(7, b"a") == [Verified(7, kept=True)]


def test_a_learner_whose_state_is_another_than_the_members_is_lost() -> None:
    (lost,) = compared(7, b"b").take(9, Verdict(verified=7, digest=b"a"))
    assert isinstance(lost, Lost)


def test_one_without_a_copy_knows_that_the_state_is_right_all_the_same() -> None:
    life = Verifying()
    life.take(7, Verdict(chosen=True))
    assert life.digested(7, b"") == [Dropped(7)]
    assert life.take(9, Verdict(verified=7, digest=b"a")) == [Verified(7, kept=False)]
    assert life.verified == BLANK


def test_a_comparison_that_is_dropped_leaves_the_verified_state_as_it_was() -> None:
    life = Verifying()
    life.founded(0)
    life.digested(0, b"a")
    assert life.take(1, Verdict(dropped=0)) == [Dropped(0)]
    assert life.verified == 0


def pass_through(life: Verifying, sums: dict[int, dict[int, int]]) -> None:
    for step, checksums in sums.items():
        life.recomputing.contributed(step, checksums)


def test_of_two_the_one_that_contributes_something_else_the_second_time_was_wrong() -> None:
    life = compared(7, b"a")
    pass_through(life, {5: {0: 1, 1: 1}, 6: {0: 2, 1: 9}, 7: {0: 8, 1: 8}})
    life.recomputing.go_back(7, {0: b"a", 1: b"b"})
    pass_through(life, {5: {0: 1, 1: 1}, 6: {0: 2, 1: 2}, 7: {0: 3, 1: 3}})
    assert life.recomputing.verified(5, b"x") == []
    assert life.recomputing.verified(7, b"x") == [Accused(1, 6)]


def test_of_two_whose_contributions_were_right_the_digests_tell() -> None:
    life = compared(7, b"a")
    pass_through(life, {7: {0: 1, 1: 1}})
    life.recomputing.go_back(7, {0: b"a", 1: b"b"})
    assert life.check(6, due=False).due, "the same state is compared again"
    pass_through(life, {7: {0: 1, 1: 1}})
    assert life.recomputing.verified(7, b"b") == [Accused(0, 7)]


def test_nobody_is_accused_if_both_passes_differ_in_both_or_others_take_part() -> None:
    life = compared(7, b"a")
    pass_through(life, {7: {0: 1, 1: 1}})
    life.recomputing.go_back(7, {0: b"a", 1: b"b"})
    pass_through(life, {7: {0: 2, 1: 2}})
    assert life.recomputing.verified(7, b"c") == []
    life.recomputing.go_back(9, {0: b"a", 1: b"b"})
    life.recomputing.forget()
    assert life.recomputing.verified(9, b"a") == []


def with_buffers(*buffers: bytes, verified: int = 3) -> dict[int, Check | None]:
    return {replica: Check(verified=verified, buffers=one) for replica, one in enumerate(buffers)}


def test_nothing_comes_of_an_attempt_from_buffers_that_differ() -> None:
    assert judge_attempt(8, with_buffers(b"a", b"a", b"a"), FORK) == Verdict(fork=FORK)
    void = judge_attempt(8, with_buffers(b"a", b"b", b"a"), FORK)
    assert isinstance(void, Void)
    assert (void.step, void.members, void.back_to, void.buffers) == (7, (1,), 3, True)
    assert void.said == Differ(7, (1,), 3, buffers=True)


def test_without_a_majority_of_buffers_nobody_is_named() -> None:
    void = judge_attempt(8, with_buffers(b"a", b"b"), FORK)
    assert isinstance(void, Void) and void.members == () and void.digests == {0: b"a", 1: b"b"}


def test_buffers_are_compared_while_the_digest_of_a_state_is_awaited_or_others_say_nothing() -> None:
    waits: dict[int, Check | None] = {0: Check(5, b"x", buffers=b"a"), 1: Check(5, buffers=b"b"), 2: None}
    assert isinstance(judge_attempt(8, waits, FORK), Void)
    silent: dict[int, Check | None] = {0: Check(buffers=b"a"), 1: Check(), 2: None}
    assert judge_attempt(8, silent, FORK) == Verdict(fork=FORK)


def test_a_state_that_differs_was_there_before_the_buffers_that_do() -> None:
    checks: dict[int, Check | None] = {
        0: Check(5, b"x", 3, buffers=b"a"),
        1: Check(5, b"y", 3, buffers=b"a"),
        2: Check(5, b"x", 3, buffers=b"b"),
    }
    void = judge_attempt(8, checks, FORK)
    assert isinstance(void, Void) and (void.step, void.members, void.buffers) == (5, (1,), False)


def test_of_two_the_one_that_begins_a_step_with_other_buffers_the_second_time_was_wrong() -> None:
    life = compared(4, b"a")
    same = {0: b"x", 1: b"x"}
    life.recomputing.contributed(7, {0: 1, 1: 1}, same)
    life.recomputing.go_back(7, {0: b"c", 1: b"d"}, buffers=True)
    assert life.check(6, due=False).due, "the state in which they were is compared"
    life.recomputing.contributed(7, {0: 1, 1: 1}, same)
    life.recomputing.contributed(8, {0: 2, 1: 2}, {0: b"d", 1: b"d"})
    assert life.recomputing.verified(7, b"z") == [Accused(0, 7)]


def test_of_two_nobody_is_accused_if_both_begin_with_other_buffers_the_second_time() -> None:
    life = compared(4, b"a")
    life.recomputing.go_back(7, {0: b"c", 1: b"d"}, buffers=True)
    life.recomputing.contributed(8, {0: 2, 1: 2}, {0: b"e", 1: b"e"})
    assert life.recomputing.verified(7, b"z") == []
