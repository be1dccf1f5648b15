"""Agreeing on checkpoints: the sentences at the head of `protocol/saving.py`, one by one."""

from outlast.protocol.saving import (
    Commit,
    Copy,
    Ended,
    Intend,
    Save,
    SaveAction,
    SaveCore,
    Saved,
    SaySave,
    Stripe,
    Unable,
)
from outlast.protocol.views import Member, View

LINEAGE = 1


def view_of(number: int, *members: int, learners: tuple[int, ...] = (), lineage: int = LINEAGE) -> View:
    return View(
        number=number,
        lineage=lineage,
        members=tuple(Member(replica, 1) for replica in members),
        learners=tuple(Member(replica, 1) for replica in learners),
    )


def core_of(replica: int, *members: int) -> SaveCore:
    core = SaveCore(replica)
    assert core.adopt(view_of(1, *members)) == []
    return core


def stripe(step: int, payload: bytes = b"", lineage: int = LINEAGE) -> Stripe:
    return Stripe(step, lineage, payload)


def ends(actions: list[SaveAction]) -> list[tuple[int, bool, bool]]:
    """Step, committed, worth another try."""
    return [(a.save.step, a.committed, a.again) for a in actions if isinstance(a, Ended)]


def said(actions: list[SaveAction]) -> list[SaySave]:
    return [a for a in actions if isinstance(a, SaySave)]


def intending() -> SaveCore:
    """A committer that has all stripes of step 5, which is stable, and has asked for leave."""
    core = core_of(0, 0, 1)
    core.decided(5, 1)
    core.written(5, b"mine")
    core.received(1, stripe(5, b"theirs"))
    (intend,) = core.stable(5)
    assert isinstance(intend, Intend)
    return core


def test_the_writers_are_the_members_that_completed_the_step_and_the_lowest_commits() -> None:
    save = Save(5, LINEAGE, 1, (2, 4, 7))
    for replica in save.writers:
        core = core_of(replica, 2, 4, 7)
        assert core.decided(5, 1) == [Copy(save)]
    assert save.committer == 2


def test_a_writer_speaks_only_after_its_stripe_is_durable_and_only_to_the_committer() -> None:
    core = core_of(1, 0, 1, 2)
    assert said(core.decided(5, 1)) == []
    assert core.written(5, b"where") == [SaySave((0,), stripe(5, b"where"))]
    assert core.written(5, b"where") == [], "once is enough"


def test_the_committer_waits_for_all_stripes_and_for_stability() -> None:
    core = core_of(0, 0, 1, 2)
    core.decided(5, 1)
    assert core.written(5, b"a") == []
    assert core.received(1, stripe(5, b"b")) == []
    assert core.stable(4) == []
    assert core.received(2, stripe(5, b"c")) == []
    assert core.stable(5) == [Intend(Save(5, LINEAGE, 1, (0, 1, 2)), {0: b"a", 1: b"b", 2: b"c"})]
    assert core.stable(6) == [], "it has asked already"


def test_nothing_is_committed_before_the_intent_is_recorded() -> None:
    core = intending()
    assert core.recorded(4) == []
    (commit,) = core.recorded(5)
    assert isinstance(commit, Commit) and commit.save.step == 5
    assert core.recorded(5) == [], "an answer may come twice"
    assert core_of(0, 0, 1).recorded(5) == [], "nobody has asked for that"


def test_when_the_manifest_is_there_all_are_told() -> None:
    core = intending()
    core.recorded(5)
    actions = core.committed(5)
    assert said(actions) == [SaySave((1,), Saved(5))] and ends(actions) == [(5, True, False)]
    writer = core_of(1, 0, 1)
    writer.decided(5, 1)
    writer.written(5, b"")
    assert ends(writer.received(0, Saved(5))) == [(5, True, False)]
    assert writer.save is None


def test_one_who_is_alone_commits_alone() -> None:
    core = core_of(0, 0)
    core.decided(1, 1)
    core.stable(1)
    (intend,) = core.written(1, b"all")
    assert isinstance(intend, Intend)
    core.recorded(1)
    assert core.committed(1) == [Ended(Save(1, LINEAGE, 1, (0,)), True)], "and there is nobody to tell"


def test_words_that_come_before_the_step_is_complete_here_are_kept() -> None:
    core = core_of(0, 0, 1)
    assert core.received(1, stripe(5, b"early")) == []
    core.decided(5, 1)
    core.stable(5)
    (intend,) = core.written(5, b"mine")
    assert isinstance(intend, Intend) and intend.stripes[1] == b"early"


def test_a_refusal_that_comes_early_ends_the_save_when_it_is_decided() -> None:
    core = core_of(0, 0, 1, 2)
    core.received(2, stripe(5))
    assert core.received(1, Unable(5, "the disk is full")) == []
    assert ends(core.decided(5, 1)) == [(5, False, False)]
    assert core.save is None


def test_words_about_a_step_that_all_have_gone_back_behind_do_not_end_the_save_of_the_new_one() -> None:
    """One that has not gone back yet repeats what it said of the old one (simulator, seed 606)."""
    core = core_of(1, 0, 1)
    core.go_back(0)
    assert core.received(0, Unable(1, "somebody is gone", again=True), settled=False) == []
    assert ends(core.decided(1, 1)) == []
    assert core.save is not None


def test_what_a_life_said_that_is_gone_does_not_count_when_its_step_is_done_again() -> None:
    """Only the gone one had completed the step; nobody says the word again."""
    core = core_of(1, 0, 1, 2)
    core.received(2, Unable(5, "took no part"))
    core.adopt(view_of(2, 0, 1))
    assert core.decided(5, 2) == [Copy(Save(5, LINEAGE, 2, (0, 1)))]
    assert core.save is not None


def test_early_words_of_steps_that_were_not_saved_are_forgotten() -> None:
    core = core_of(0, 0, 1)
    core.received(1, stripe(5))
    core.decided(9, 1)
    core.stable(9)
    assert core.written(9, b"") == [], "the stripe of step 5 is none of step 9"


def test_a_writer_that_is_unable_ends_it_for_all() -> None:
    writer, committer = core_of(1, 0, 1, 2), core_of(0, 0, 1, 2)
    for core in (writer, committer):
        core.decided(5, 1)
    actions = writer.unable(5, "the disk is full")
    assert said(actions) == [SaySave((0, 2), Unable(5, "the disk is full"))]
    assert ends(actions) == [(5, False, False)], "trying again would not help"
    assert ends(committer.received(1, Unable(5, "the disk is full"))) == [(5, False, False)]
    assert writer.unable(5, "again") == [] and committer.received(1, Unable(5, "again")) == []


def test_in_a_new_view_in_band_the_save_goes_on_and_words_are_repeated() -> None:
    core = core_of(1, 0, 1)
    core.decided(5, 1)
    assert core.adopt(view_of(2, 0, 1, learners=(2,))) == [], "there is nothing to repeat yet"
    core.written(5, b"x")
    assert core.adopt(view_of(3, 0, 1, 2)) == [SaySave((0,), stripe(5, b"x"))]


def test_a_writer_that_is_unable_says_so_again_in_the_next_view() -> None:
    """The word may be lost with a connection that broke, and the view renewed with the same members."""
    core = core_of(1, 0, 1, 2)
    core.decided(5, 1)
    core.unable(5, "the disk is full")
    assert said(core.adopt(view_of(2, 0, 1, 2))) == [SaySave((0, 2), Unable(5, "the disk is full"))]
    core.decided(9, 2)
    core.abandon("for the sake of it")
    assert core.adopt(view_of(3, 0, 1, 2)) == []


def test_a_writer_that_was_unable_is_silent_about_what_is_void() -> None:
    core = core_of(1, 0, 1, 2)
    core.decided(5, 1)
    core.unable(5, "the disk is full")
    core.go_back(4)
    assert core.adopt(view_of(2, 0, 1, 2)) == []


def test_a_committer_that_is_done_with_it_says_again_how_it_ended() -> None:
    core = intending()
    core.recorded(5)
    core.committed(5)
    core.adopt(view_of(2, 0, 1))
    assert core.received(1, stripe(5)) == [SaySave((1,), Saved(5))]
    core.decided(6, 2)
    core.unable(6, "full")
    assert core.received(1, stripe(6)) == [
        SaySave((1,), Unable(6, "it was given up in an earlier view", again=True))
    ]
    assert core.received(1, stripe(6, lineage=LINEAGE + 1)) == []


def test_a_writer_whose_stripe_is_durable_may_die() -> None:
    core = core_of(0, 0, 1, 2)
    core.decided(5, 1)
    core.received(2, stripe(5))
    assert core.adopt(view_of(2, 0, 1)) == []
    core.received(1, stripe(5))
    core.stable(5)
    (intend,) = core.written(5, b"")
    assert isinstance(intend, Intend) and intend.stripes.keys() == {0, 1, 2}


def test_a_writer_that_is_gone_before_its_stripe_was_durable_ends_it() -> None:
    core = core_of(0, 0, 1, 2)
    core.decided(5, 1)
    actions = core.adopt(view_of(2, 0, 1))
    assert ends(actions) == [(5, False, True)], "the next try may well succeed"
    (word,) = said(actions)
    assert word.to == (1,) and isinstance(word.body, Unable) and word.body.again
    other = core_of(1, 0, 1, 2)
    other.decided(5, 1)
    assert other.adopt(view_of(2, 0, 1)) == [], "that is for the committer to say"
    assert ends(other.received(0, word.body)) == [(5, False, True)]


def test_without_its_committer_a_save_ends() -> None:
    core = core_of(1, 0, 1, 2)
    core.decided(5, 1)
    core.written(5, b"")
    assert ends(core.adopt(view_of(2, 1, 2))) == [(5, False, True)]


def test_one_who_is_out_of_the_view_or_the_lineage_has_no_part_in_it() -> None:
    for view in (view_of(2, 0, 2), view_of(2, 0, 1, 2, lineage=LINEAGE + 1)):
        core = core_of(1, 0, 1, 2)
        core.decided(5, 1)
        assert ends(core.adopt(view)) == [(5, False, True)]
    assert core.abandon("it is over already") == []


def test_what_was_said_in_another_lineage_does_not_count() -> None:
    core = core_of(0, 0, 1)
    core.received(1, stripe(5))
    core.adopt(view_of(2, 0, 1, lineage=2))
    core.decided(5, 2)
    core.stable(5)
    assert core.written(5, b"") == []
    assert core.received(1, stripe(5, lineage=1)) == []


def test_one_who_was_given_the_record_has_no_copy_and_says_so() -> None:
    core = core_of(2, 0, 1, 2)
    core.adopt(view_of(2, 0, 1, 2))
    (word,) = said(core.decided(5, 1))
    assert word.to == (0, 1) and isinstance(word.body, Unable) and word.body.again
    assert core.save is None and core.written(5, b"") == []


def test_who_is_not_a_member_writes_nothing() -> None:
    core = SaveCore(3)
    core.adopt(view_of(1, 0, 1, learners=(3,)))
    assert core.decided(5, 1) == [] and core.save is None


def test_a_newer_save_ends_the_one_before_and_takes_nothing_from_it() -> None:
    core = core_of(0, 0, 1)
    core.decided(5, 1)
    core.received(1, stripe(5))
    actions = core.decided(7, 1)
    assert ends(actions) == [(5, False, True)] and Copy(Save(7, LINEAGE, 1, (0, 1))) in actions
    core.stable(7)
    assert core.written(7, b"") == [], "the stripe of step 5 is none of step 7"
    assert core.committed(5) == core.recorded(5) == core.written(5, b"") == []


# Where states are compared.


def gated() -> SaveCore:
    """A committer that has all stripes of step 5, which is stable, and is being compared."""
    core = core_of(0, 0, 1)
    core.decided(5, 1, gated=True)
    core.written(5, b"mine")
    core.received(1, stripe(5, b"theirs"))
    assert core.stable(5) == []
    return core


def test_what_is_compared_is_committed_when_it_is_verified() -> None:
    core = gated()
    assert core.verified(4) == []
    (intend,) = core.verified(5)
    assert isinstance(intend, Intend)


def test_what_nobody_can_compare_any_more_is_given_up_and_tried_again() -> None:
    assert ends(gated().dropped(5)) == [(5, False, True)]
    assert gated().dropped(4) == []


def test_a_save_is_given_up_when_members_go_back_behind_it() -> None:
    core = gated()
    assert ends(core.go_back(3)) == [(5, False, True)]
    core.adopt(view_of(2, 0, 1))
    (copy,) = core.decided(4, 2)
    assert isinstance(copy, Copy), "a step before it may be the next to be saved"
    assert gated().go_back(5) == []


def test_what_one_has_written_that_died_before_its_state_was_compared_is_not_used() -> None:
    assert ends(gated().adopt(view_of(2, 0))) == [(5, False, True)]
    core = core_of(0, 0, 1)
    core.decided(5, 1, gated=True)
    core.verified(5)
    core.received(1, stripe(5, b"theirs"))
    assert core.adopt(view_of(2, 0)) == []
