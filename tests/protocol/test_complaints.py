"""When members cannot reach each other, the fewest leave, and every leader picks the same ones."""

import random

from outlast.protocol.complaints import Complaints

HOLDS_S = 0.5
COUNTS_AFTER_S = 0.5
ALL = dict.fromkeys(range(5), 1)


def upheld(
    accusations: dict[int, set[int]], members: dict[int, int] = ALL, holders: tuple[int, ...] = ()
) -> list[int]:
    """The verdict on complaints that have been repeated for long enough."""
    complaints = Complaints(HOLDS_S, COUNTS_AFTER_S)
    for now in (0.0, 0.25, 0.5):
        for accuser, accused in accusations.items():
            complaints.note(accuser, accused, now)
    return complaints.verdict(members, 0.5, holders)


def test_of_two_that_accuse_each_other_the_higher_id_leaves() -> None:
    assert upheld({0: {3}, 3: {0}}) == [3]


def test_of_two_the_accused_leaves_when_only_one_complains() -> None:
    assert upheld({3: {0}}) == [0]
    assert upheld({0: {3}}) == [3]


def test_one_that_is_cut_off_from_many_leaves_alone_whoever_complains() -> None:
    assert upheld({0: {1}, 2: {1}, 3: {1}}) == [1], "all others complain"
    assert upheld({1: {0, 2, 3}}) == [1], "only the cut-off one can complain"
    assert upheld({0: {1}, 1: {0, 2, 3}, 2: {1}, 3: {1}}) == [1], "both sides complain"


def test_one_that_accuses_everybody_convicts_only_itself() -> None:
    assert upheld({0: {1, 2, 3, 4}}) == [0]


def test_the_last_one_that_holds_the_state_stays_and_those_it_cannot_reach_go() -> None:
    """It would be spared anyway, and then nobody would go and nothing go on (simulator, seed 17752)."""
    assert sorted(upheld({0: {1, 2}}, holders=(0,))) == [1, 2]
    assert upheld({0: {1, 2}}, holders=(0, 3)) == [0], "another one has it, too"
    assert sorted(upheld({0: {1, 2}, 3: {1, 2, 0}}, holders=(0, 3))) == [0, 1, 2], "one of the two is left"


def test_two_separate_quarrels_cost_one_member_each() -> None:
    assert sorted(upheld({0: {1}, 1: {0}, 2: {3}, 3: {2}})) == [1, 3]


def test_no_two_that_cannot_reach_each_other_both_stay() -> None:
    chance = random.Random(5)
    for _ in range(200):
        accusations = {r: set(chance.sample(sorted(ALL), chance.randint(0, 3))) - {r} for r in ALL}
        staying = ALL.keys() - set(upheld(accusations))
        assert staying, "complaints alone never empty a view"
        assert not any(accusations[r] & staying for r in staying)


def test_the_order_of_complaints_does_not_matter() -> None:
    accusations = {0: {3}, 3: {0}, 1: {2}, 2: {1}, 4: {1, 3}}
    forwards = upheld(accusations)
    assert forwards == upheld(dict(reversed(accusations.items())))


def test_a_complaint_counts_only_once_it_has_been_upheld_for_a_while() -> None:
    complaints = Complaints(HOLDS_S, COUNTS_AFTER_S)
    complaints.note(0, {1}, 0.0)
    complaints.note(0, {1}, 0.4)
    assert complaints.verdict(ALL, 0.4) == []
    complaints.note(0, {1}, 0.5)
    assert complaints.verdict(ALL, 0.5) == [1]


def test_a_complaint_that_is_not_repeated_expires() -> None:
    complaints = Complaints(HOLDS_S, COUNTS_AFTER_S)
    complaints.note(0, {1}, 0.0)
    assert complaints.verdict(ALL, HOLDS_S + 0.01) == []
    # Made once more, it has to be upheld from the beginning.
    complaints.note(0, {1}, 0.6)
    assert complaints.verdict(ALL, 0.7) == []


def test_a_complaint_that_is_missing_from_the_next_report_is_withdrawn() -> None:
    complaints = Complaints(HOLDS_S, COUNTS_AFTER_S)
    complaints.note(0, {1, 2}, 0.0)
    complaints.note(0, {2}, 0.5)
    assert complaints.verdict(ALL, 0.5) == [2]


def test_a_complaint_that_is_taken_up_again_starts_from_the_beginning() -> None:
    complaints = Complaints(HOLDS_S, COUNTS_AFTER_S)
    complaints.note(0, {1}, 0.0)
    complaints.note(0, (), 0.4)
    complaints.note(0, {1}, 0.5)
    assert complaints.verdict(ALL, 0.7) == []


def test_young_complaints_open_no_case_but_weigh_in_one() -> None:
    complaints = Complaints(HOLDS_S, COUNTS_AFTER_S)
    complaints.note(2, {0}, 0.0)
    complaints.note(2, {0, 1}, 0.45)
    assert complaints.verdict(ALL, 0.5) == [2], "cut off from both, although it accused one of them first"


def test_withdrawing_ones_own_complaint_leaves_those_of_others() -> None:
    complaints = Complaints(HOLDS_S, COUNTS_AFTER_S)
    for now in (0.0, 0.5):
        complaints.note(0, {2}, now)
        complaints.note(1, {2}, now)
    complaints.note(0, (), 0.5)
    assert complaints.verdict(ALL, 0.5) == [2]


def test_only_a_new_complaint_is_news() -> None:
    complaints = Complaints(HOLDS_S, COUNTS_AFTER_S)
    assert complaints.note(0, {1}, 0.0)
    assert not complaints.note(0, {1}, 0.1)
    assert complaints.note(0, {1, 2}, 0.2)
    assert not complaints.note(0, (), 0.3)
    assert complaints.note(0, {1}, 0.4)


def test_nobody_can_complain_about_itself() -> None:
    complaints = Complaints(HOLDS_S, COUNTS_AFTER_S)
    assert not complaints.note(1, {1}, 0.0)
    assert upheld({1: {1}}) == []


def test_complaints_by_or_about_non_members_do_not_count() -> None:
    assert upheld({0: {1}}, members={0: 1, 2: 1}) == []
    assert upheld({0: {1}}, members={1: 1, 2: 1}) == []


def test_one_that_is_forgotten_takes_its_complaints_and_those_about_it_along() -> None:
    complaints = Complaints(HOLDS_S, COUNTS_AFTER_S)
    for now in (0.0, 0.5):
        complaints.note(0, {1}, now)
        complaints.note(1, {2}, now)
        complaints.note(3, {4}, now)
    complaints.forget(1)
    assert complaints.verdict(ALL, 0.5) == [4]


def test_clearing_forgets_everything() -> None:
    complaints = Complaints(HOLDS_S, COUNTS_AFTER_S)
    complaints.note(0, {1}, 0.0)
    complaints.note(0, {1}, 0.5)
    complaints.clear()
    assert complaints.verdict(ALL, 0.5) == []
    assert complaints.note(0, {1}, 0.6), "and everything is new again"


def test_between_two_the_one_with_more_lives_behind_it_leaves() -> None:
    assert upheld({0: {4}, 4: {0}}, {0: 4, 4: 1}) == [0]
    assert upheld({0: {4}, 4: {0}}, {0: 1, 4: 1}) == [4]


def test_whom_complaints_concern() -> None:
    complaints = Complaints(HOLDS_S, COUNTS_AFTER_S)
    complaints.note(1, {3}, 0.0)
    assert complaints.concern(1, ALL) and complaints.concern(3, ALL) and not complaints.concern(2, ALL)
    assert not complaints.concern(1, [0, 1, 2]), "the other one is not there any more"
