"""From where members go on that came into a view out of step: by what each of them said first."""

from outlast.protocol.reconciling import Ground, Holdings
from outlast.protocol.step_words import BLANK, FeedAgain, Fork, Holding, Pin
from outlast.protocol.views import Member, Retreat, View

A, B, C, LEARNER = (Member(replica, 1) for replica in range(4))
VIEW = View(number=2, members=(A, B, C), learners=(LEARNER,))


def ground(*said: Holding) -> Ground:
    holdings = Holdings(VIEW)
    for replica, holding in enumerate(said):
        assert holdings.ground() is None, "before all have spoken"
        holdings.take(replica, holding)
    found = holdings.ground()
    assert found is not None
    return found


def test_who_has_the_newest_record_teaches() -> None:
    found = ground(Holding(4), Holding(5), Holding(5))
    assert (found.top, found.teachers, found.fed) == (5, [1, 2], 4)


def test_what_is_said_later_changes_nothing() -> None:
    holdings = Holdings(VIEW)
    for replica, newest in enumerate([4, 5, 5]):
        holdings.take(replica, Holding(newest))
    before = holdings.ground()
    holdings.take(0, Holding(5, running=True))
    assert holdings.ground() == before
    assert holdings.all_hold(5)


def test_blank_members_get_the_state_from_one_and_learners_from_all_who_have_it() -> None:
    found = ground(Holding(BLANK), Holding(5), Holding(4))
    assert found.gifts(3, frozenset()) == [
        Pin(A, 5, (1,)),
        Pin(LEARNER, 5, (1, 2)),
        FeedAgain(3, BLANK, 5),
    ]
    assert found.gifts(3, {LEARNER}) == [Pin(A, 5, (1,)), FeedAgain(3, BLANK, 5)]


def test_where_some_came_in_band_learners_have_been_given_all_already() -> None:
    found = ground(Holding(5), Holding(5, running=True), Holding(5))
    assert found.gifts(4, frozenset()) == [] and found.fed == 4


def test_all_go_back_to_the_newest_fork_and_who_has_no_copy_is_blank() -> None:
    fork = Fork(1, 3)
    found = ground(Holding(4, fork=fork), Holding(7, verified=3), Holding(7, verified=6))
    assert found.fork == fork
    assert found.newest == {0: 4, 1: 3, 2: BLANK}


def test_the_lowest_founds_where_nobody_has_anything() -> None:
    found = ground(Holding(BLANK), Holding(BLANK), Holding(BLANK))
    assert (found.top, found.founder) == (BLANK, 0)
    founded = found.founded(0)
    assert founded.gifts(1, frozenset())[:2] == [Pin(B, 0, (0,)), Pin(C, 0, (0,))]


def test_that_one_holds_all_there_is_is_news_once() -> None:
    holdings = Holdings(VIEW)
    holdings.take(0, Holding(4))
    assert not holdings.acknowledge(0, 4)
    assert holdings.acknowledge(0, 5)
    assert not holdings.acknowledge(0, 5)


def test_all_go_back_where_the_view_says_so_though_none_of_them_knows_why() -> None:
    """Those who found out have died before they told the others (simulator, seed 40014)."""
    view = View(number=3, members=(A, B), retreat=Retreat(1, 3, since=2))
    holdings = Holdings(view)
    holdings.take(0, Holding(7, verified=3))
    holdings.take(1, Holding(7, verified=6))
    found = holdings.ground()
    assert found is not None and found.fork == Fork(1, 3)
    assert found.newest == {0: 3, 1: BLANK}


def test_what_members_have_gone_back_to_since_then_counts_more_than_what_the_view_says() -> None:
    view = View(number=9, members=(A, B), retreat=Retreat(1, 3, since=2))
    holdings = Holdings(view)
    holdings.take(0, Holding(7, fork=Fork(5, 6)))
    holdings.take(1, Holding(9, verified=6, fork=Fork(1, 3)))
    found = holdings.ground()
    assert found is not None and found.fork == Fork(5, 6)
    assert found.newest == {0: 7, 1: 6}
