"""States that are wanted by name: which are kept, and which of them is written now."""

from hypothesis import given
from hypothesis import strategies as st

from outlast.protocol.naming import Kept, NamedStates, choose
from outlast.protocol.saving import Copy, Ended, Intend, SaveCore, Saved, SavedByOther, SaySave, Stripe
from outlast.protocol.step_words import Check
from outlast.protocol.views import Member, View


def check(verified: int) -> Check:
    return Check(verified=verified)


def test_the_oldest_state_that_is_safe_is_written_by_all_who_keep_it() -> None:
    keeps = {0: (5, 9), 1: (5,), 2: (9,)}
    assert choose(keeps, [None, None, None]) == Kept(5, (0, 1))
    assert choose(keeps, [check(7), check(5), check(5)]) == Kept(5, (0, 1))
    assert choose(keeps, [check(4), check(3), check(4)]) is None, "members may go back behind it"
    assert choose({2: (9,)}, [check(-1), None, None]) == Kept(9, (2,)), "nobody is there to compare with"
    assert choose({}, [None]) is None


def test_an_older_state_is_kept_until_a_newer_one_of_that_name_is_safe() -> None:
    wanted = NamedStates()
    for step in (3, 5, 7, 9):
        wanted.ask("best", step)
    assert wanted.steps == (3, 9), "what lies between is dropped"
    wanted.safe(8)
    assert wanted.steps == (3, 9)
    wanted.safe(9)
    assert wanted.steps == (9,)


def test_names_do_not_take_each_others_states() -> None:
    wanted = NamedStates()
    wanted.ask("best", 3)
    wanted.ask("last", 3)
    wanted.ask("best", 6)
    wanted.safe(6)
    assert (wanted.names(3), wanted.names(6)) == (("last",), ("best",))
    wanted.saved(6, ["best"])
    assert wanted.steps == (3,)
    wanted.saved(3, ["last"])
    assert wanted.steps == ()


def test_what_was_saved_takes_older_ones_of_the_name_along_and_not_newer_ones() -> None:
    wanted = NamedStates()
    wanted.ask("best", 3)
    wanted.ask("best", 6)
    wanted.saved(3, ["best"])
    assert wanted.steps == (6,)
    wanted.saved(6, ["best"])
    assert wanted.steps == ()


def test_members_that_go_back_keep_what_is_not_void() -> None:
    wanted = NamedStates()
    wanted.ask("best", 3)
    wanted.ask("best", 6)
    wanted.go_back(5)
    assert wanted.steps == (3,)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["ask", "safe", "back", "saved"]))))
def test_of_every_name_the_newest_is_kept_and_no_more_than_two(events: list[tuple[str, str]]) -> None:
    wanted, newest = NamedStates(), dict[str, int]()
    for step, (name, event) in enumerate(events, 1):
        match event:
            case "ask":
                wanted.ask(name, step)
                newest[name] = step
            case "safe":
                wanted.safe(step - 1)
            case "back":
                wanted.go_back(step - 2)
                newest = {one: at for one, at in newest.items() if at <= step - 2}
            case "saved" if wanted.steps:
                oldest = wanted.steps[0]
                names = wanted.names(oldest)
                wanted.saved(oldest, names)
                newest = {one: at for one, at in newest.items() if at > oldest or one not in names}
        for one, at in newest.items():
            assert one in wanted.names(at) or event == "back" or at not in wanted.steps
        for one in "ab":
            assert sum(one in wanted.names(at) for at in wanted.steps) <= 2


# The save itself, in `protocol/saving.py`.


def core_of(replica: int, *members: int) -> SaveCore:
    core = SaveCore(replica)
    core.adopt(View(number=1, lineage=1, members=tuple(Member(m, 1) for m in members)))
    return core


def test_only_those_who_keep_the_state_write_and_the_lowest_of_them_commits() -> None:
    cores = {replica: core_of(replica, 0, 1, 2) for replica in range(3)}
    decided = {r: core.decided(8, 1, kept=Kept(5, (1, 2))) for r, core in cores.items()}
    assert decided[0] == []
    (copy,) = decided[1]
    assert isinstance(copy, Copy)
    assert (copy.save.step, copy.save.at, copy.save.named, copy.save.writers) == (5, 8, True, (1, 2))
    assert cores[2].written(8, b"two") == [SaySave((1,), Stripe(8, 1, b"two"))]
    cores[1].received(2, Stripe(8, 1, b"two"))
    assert cores[1].written(8, b"one") == []
    (intend,) = cores[1].stable(8)
    assert isinstance(intend, Intend) and intend.stripes == {1: b"one", 2: b"two"}
    cores[1].recorded(5)
    say, ended = cores[1].committed(8)
    assert say == SaySave((0, 2), Saved(8, 3)) and isinstance(ended, Ended) and ended.committed
    assert cores[0].received(1, Saved(8, 3)) == [SavedByOther(5)], "it is the state that counts"


def test_a_stripe_of_a_later_attempt_at_an_older_state_is_not_taken_for_one_that_is_over() -> None:
    """A save of step 7 has ended here; then a record, which has not come here yet, decides on step 5."""
    core = core_of(0, 0, 1)
    core.decided(7, 1)
    core.unable(7, "no space")
    assert core.received(1, Stripe(9, 1, b"theirs")) == []
    core.decided(9, 1, kept=Kept(5, (0, 1)))
    core.written(9, b"mine")
    assert [type(action) for action in core.stable(9)] == [Intend]


def test_a_save_that_was_decided_after_what_members_go_back_to_is_given_up() -> None:
    core = core_of(0, 0)
    core.decided(9, 1, kept=Kept(5, (0,)))
    assert core.go_back(9) == []
    (ended,) = core.go_back(8)
    assert isinstance(ended, Ended) and ended.again


def test_after_the_last_step_saves_are_told_apart_by_numbers() -> None:
    core = core_of(0, 0)
    core.stable(12)
    core.decided(11, 1, kept=Kept(5, (0,)))
    assert [type(action) for action in core.written(11, b"")] == [Intend]
    core.recorded(5)
    core.committed(11)
    (copy,) = core.decided(12, 1, later=2)
    assert isinstance(copy, Copy) and (copy.save.step, copy.save.at, copy.save.named) == (10, 12, False)
