"""States that differ again: the script's doing if it is the same place, a machine's if it is another."""

from outlast.protocol.repeating import after_agreeing, differing, packed, repeats, unpacked
from outlast.protocol.step_words import BLANK, NO_FORK, Check, Differ, Difference, Lost, Verdict
from outlast.protocol.verifying import Verifying, Void, judge, judge_attempt

WEIGHT, MOMENT, RATE = 2, 4, 7
"""The last one is a plain value: its name is odd."""


def entries(**changed: int) -> bytes:
    return packed(
        {WEIGHT: changed.get("weight", 0), MOMENT: changed.get("moment", 0), RATE: changed.get("rate", 0)}
    )


def compare(step: int, states: list[bytes], *, verified: int = 0, before: Difference | None = None) -> Void:
    """Members that have these entries compare the states after this step; all remember the same."""
    checks = {
        replica: Check(step, b"digest of " + state, verified, entries=state, before=before)
        for replica, state in enumerate(states)
    }
    void = judge(checks, NO_FORK)
    assert isinstance(void, Void)
    return void


def test_what_differs_is_known_by_name_and_member() -> None:
    tables = {0: packed({2: 1, 4: 1, 6: 5}), 1: packed({2: 1, 4: 9})}
    assert differing(tables) == {4: {0: 1, 1: 9}, 6: {0: 5, 1: None}}
    assert differing({0: packed({2: 1}), 1: b""}) == {}, "one says nothing"


def test_what_a_peer_sends_is_taken_as_it_is() -> None:
    assert unpacked(packed({2: 1}) + b"abc") == {2: 1}


def test_the_first_time_it_is_taken_for_a_machine() -> None:
    void = compare(20, [entries(rate=1), entries(), entries()])
    assert (void.members, void.again) == ((0,), False)


def test_the_same_steps_again_in_the_same_place_is_the_script() -> None:
    first = compare(20, [entries(rate=1), entries(), entries()], verified=10)
    # The one that was evicted is not back yet, and another is chief.
    again = compare(20, [entries(rate=1), entries()], verified=12, before=first.difference)
    assert again.again
    assert again.earlier == (0,)
    assert again.said == Differ(20, (), 12, again=True)


def test_so_it_is_if_it_was_seen_earlier_the_second_time() -> None:
    first = compare(20, [entries(weight=1), entries()], verified=10)
    assert compare(14, [entries(weight=2), entries()], verified=10, before=first.difference).again


def test_another_place_is_another_flip() -> None:
    first = compare(20, [entries(weight=1), entries(), entries()], verified=10)
    second = compare(20, [entries(moment=1), entries()], verified=10, before=first.difference)
    assert not second.again
    assert compare(20, [entries(moment=2), entries()], verified=10, before=second.difference).again


def test_the_same_place_in_later_steps_is_another_flip() -> None:
    first = compare(20, [entries(weight=1), entries()], verified=10)
    later = compare(40, [entries(weight=1), entries()], verified=30, before=first.difference)
    assert not later.again


def test_two_flips_never_find_a_learning_rate() -> None:
    first = compare(20, [entries(rate=1), entries()], verified=10)
    other = compare(40, [entries(weight=1), entries()], verified=30, before=first.difference)
    assert compare(60, [entries(rate=1), entries()], verified=50, before=other.difference).again


def test_a_member_that_differs_in_every_life_does_what_its_script_says() -> None:
    first = compare(20, [entries(), entries(weight=1), entries()], verified=10)
    again = compare(60, [entries(), entries(weight=5), entries()], verified=50, before=first.difference)
    assert again.again
    agreed = after_agreeing(first.difference, [0, 1, 2])
    assert not compare(60, [entries(), entries(weight=5), entries()], verified=50, before=agreed).again
    other = compare(60, [entries(weight=5), entries(), entries()], verified=50, before=first.difference)
    assert not other.again, "it is another member"


def test_the_very_same_states_are_a_sign_where_entries_are_not_known() -> None:
    def begin(*buffers: bytes, before: Difference | None = None) -> Void:
        checks = {r: Check(verified=3, buffers=one, before=before) for r, one in enumerate(buffers)}
        void = judge_attempt(9, checks, NO_FORK)
        assert isinstance(void, Void)
        return void

    first = begin(b"wrong", b"right", b"right")
    assert not begin(b"other", b"right", before=first.difference).again
    assert begin(b"wrong", b"right", before=first.difference).again


def test_who_is_new_learns_what_others_remember() -> None:
    first = compare(20, [entries(), entries(weight=1), entries()], verified=10)
    new = Verifying()
    told = Check(before=first.difference)
    new.heard(judge({0: told, 1: Check()}, NO_FORK), {0: told, 1: Check()})  # type: ignore[arg-type]
    assert new.before == first.difference
    said = new.check(30, due=False)
    assert said.before == first.difference


def test_agreeing_is_remembered_too() -> None:
    life = Verifying()
    life.before = compare(20, [entries(), entries(weight=1), entries()], verified=10).difference
    checks = {replica: Check(30, b"same") for replica in range(3)}
    verdict = judge(checks, NO_FORK)
    life.heard(verdict, checks)  # type: ignore[arg-type]
    assert life.before is not None and life.before.members == ()


def test_nothing_is_remembered_of_nothing() -> None:
    assert not repeats(Difference(5, (1,), b"\x02\0\0\0"), BLANK, [])
    assert after_agreeing(None, [1]) is None


def test_a_learner_that_has_another_state_knows_in_what() -> None:
    checks = {replica: Check(7, b"right", entries=entries()) for replica in range(2)}
    verdict = judge(checks, NO_FORK)
    assert isinstance(verdict, Verdict)
    for digested_first in (True, False):
        life = Verifying()
        life.begin(7)
        said = life.digested(7, b"wrong", entries(rate=1)) if digested_first else []
        said = said + life.take(9, verdict)
        said = said if digested_first else said + life.digested(7, b"wrong", entries(rate=1))
        (lost,) = said
        assert isinstance(lost, Lost) and lost.differ is not None
        assert list(differing(lost.differ.entries)) == [RATE]
