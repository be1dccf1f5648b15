"""What people hear while a member runs."""

from etcd_pictures import picture

from outlast.etcd.telling import Account


def test_good_news_are_told_at_once_and_once() -> None:
    account = Account()
    assert account.look(picture("abc")) == ["3 of 3 members answer; a leads; the cluster is healthy"]
    assert account.healthy
    assert account.look(picture("abc")) == []


def test_a_change_is_told_when_it_lasts() -> None:
    account = Account()
    account.look(picture("abc"))
    assert account.look(picture("abC")) == []
    assert account.look(picture("abc")) == []
    assert account.look(picture("abC")) == []
    assert account.look(picture("abC")) == ["c (Connection refused) does not answer; 2 of 3 members answer"]
    account.look(picture("abc"))
    assert account.look(picture("abc")) == ["c is back; 3 of 3 members answer"]


def test_a_lost_majority_is_said_with_what_to_do() -> None:
    account = Account()
    account.look(picture("abc"))
    account.look(picture("aBC", leader=""))
    (said,) = account.look(picture("aBC", leader=""))
    assert said.startswith("no majority: 1 of 3 members answers")
    assert "start b (Connection refused) and c (Connection refused) again. Nothing is lost" in said
    assert not account.healthy
    account.look(picture("abC", leader="b"))
    (said,) = account.look(picture("abC", leader="b"))
    assert said == (
        "b is back; c (Connection refused) does not answer; 2 of 3 members answer; b leads; "
        "that is a majority, and it works"
    )


def test_waiting_names_those_that_are_missing() -> None:
    account = Account()
    places = {"a": "a:2380", "b": "b:2380", "c": "c:2380"}
    (said,) = account.wait({"a"}, places, "")
    assert said.startswith("waiting for a majority, which is 2 of 3 members: 1 can be reached; start ")
    assert said.endswith("start b (b:2380) and c (c:2380) as well")
    assert account.wait({"a"}, places, "") == []
    assert account.wait({"a", "b"}, places, "") == ["2 of 3 members can be reached, and begin"]
    assert account.wait({"a", "b", "c"}, places, "the lists differ")[0].endswith("begin. the lists differ")
