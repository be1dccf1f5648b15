"""Machines are taken on, replicas get places on them, and keep them until the machine is lost or leaves."""

from dataclasses import replace

import msgspec
from rosters import arrivals, dead, doubted

from outlast.protocol.messages import Enlist, Register
from outlast.protocol.roster import Change, plan
from outlast.protocol.views import JobSpec, Membership, Place, Standing, process_number


def job(replicas: int = 4, per_machine: int = 2) -> Membership:
    return Membership(spec=JobSpec(name="job", replicas=replicas, shards=4, per_machine=per_machine))


def asks(*machines: str, start: str = "1", room: int = 2) -> dict[str, Enlist]:
    return {
        name: Enlist(agent=name, start=f"{name}/{start}", home=f"home of {name}", room=room)
        for name in machines
    }


def with_machines(*machines: str, replicas: int = 4) -> Membership:
    """One after the other."""
    membership = job(replicas)
    for machine in machines:
        membership = plan(membership, Change(enlists=asks(machine)))
    return membership


def trained(*machines: str, replicas: int = 4) -> Membership:
    """All replicas are members, each where it was placed."""
    membership = with_machines(*machines, replicas=replicas)
    registers = {
        replica: Register(replica=replica, process=process_number(place.boot, 1), rejoin=0, agent=place.agent)
        for replica, place in membership.places.items()
    }
    return plan(membership, Change(arrivals=registers))


def where(membership: Membership) -> dict[int, str]:
    return {replica: place.agent for replica, place in sorted(membership.places.items())}


def silent(membership: Membership, machine: str) -> Membership:
    """Its replicas are out of the view, since nothing is heard of them."""
    lost = [replica for replica, place in membership.places.items() if place.agent == machine]
    removals = {
        replica: replace(removal, process=membership.seats[replica].process)
        for replica, removal in doubted(*lost).items()
    }
    return plan(membership, Change(removals=removals))


def test_the_first_machine_takes_what_it_has_room_for_and_the_next_one_the_rest() -> None:
    one = with_machines("a")
    assert where(one) == {0: "a", 1: "a"}
    two = plan(one, Change(enlists=asks("b")))
    assert where(two) == {0: "a", 1: "a", 2: "b", 3: "b"}
    assert plan(two, Change()) == two


def test_machines_that_come_together_share_the_work() -> None:
    assert where(plan(job(), Change(enlists=asks("a", "b", "c")))) == {0: "a", 1: "b", 2: "c", 3: "a"}


def test_numbers_are_never_given_twice() -> None:
    membership = plan(with_machines("a", "b"), Change(enlists=asks("a", start="2")))
    numbers = [host.boot for host in membership.hosts.values()]
    numbers += [place.boot for place in membership.places.values()]
    assert len(set(numbers)) == len(numbers)
    assert membership.boots == max(numbers) == 7
    assert membership.hosts["a"].boot == 7, "a later start has a higher number"


def test_one_start_that_asks_twice_is_given_one_number() -> None:
    membership = with_machines("a")
    assert plan(membership, Change(enlists=asks("a"))) == membership


def test_a_job_whose_agents_know_their_replicas_takes_nobody_on() -> None:
    membership = job(per_machine=0)
    assert plan(membership, Change(enlists=asks("a"))) == membership


def test_replicas_of_a_lost_machine_are_started_where_there_is_room() -> None:
    membership = silent(trained("a", "b", "c"), "b")
    moved = plan(membership, Change(lost={"b"}))
    assert where(moved) == {0: "a", 1: "a", 2: "c", 3: "c"}
    assert moved.places[2].boot > membership.places[2].boot


def test_without_room_they_wait_for_their_machine() -> None:
    membership = silent(trained("a", "b"), "b")
    assert plan(membership, Change(lost={"b"})).places == membership.places
    later = plan(membership, Change(lost={"b"}, enlists=asks("c")))
    assert where(later) == {0: "a", 1: "a", 2: "c", 3: "c"}


def test_one_that_somebody_counts_on_is_not_moved_though_nothing_is_heard_of_its_machine() -> None:
    membership = trained("a", "b", "c")
    assert plan(membership, Change(lost={"b"})).places == membership.places


def test_the_last_holder_of_the_state_is_not_moved() -> None:
    membership = trained("a", replicas=1)
    membership = plan(membership, Change(enlists=asks("b")))
    alone = silent(membership, "a")
    assert alone.seats[0].standing is Standing.MEMBER
    assert where(plan(alone, Change(lost={"a"}))) == {0: "a"}


def test_a_machine_that_leaves_gives_its_replicas_to_others_once_they_are_gone() -> None:
    membership = plan(trained("a", "b"), Change(enlists=asks("c")))
    leaving = plan(membership, Change(left={"b"}))
    assert where(leaving) == where(membership), "they still work"
    gone = {
        replica: replace(removal, process=leaving.seats[replica].process)
        for replica, removal in dead(2, 3).items()
    }
    after = plan(leaving, Change(removals=gone, left={"b"}))
    assert where(plan(after, Change(left={"b"}))) == {0: "a", 1: "a", 2: "c", 3: "c"}


def test_a_machine_that_has_left_may_come_back() -> None:
    membership = plan(with_machines("a"), Change(left={"a"}))
    assert membership.left == ("a",)
    back = plan(membership, Change(enlists=asks("a", start="2")))
    assert back.left == ()
    assert where(back) == {0: "a", 1: "a"}


def test_what_has_finished_is_not_started_elsewhere() -> None:
    membership = with_machines("a")
    seats = plan(membership, Change(arrivals=arrivals(0))).seats
    seats = {0: msgspec.structs.replace(seats[0], standing=Standing.FINISHED)}
    membership = msgspec.structs.replace(membership, seats=seats, places={0: Place("gone", 1)})
    assert plan(membership, Change(left={"gone"})).places[0].agent == "gone"


def test_the_chief_is_not_put_off_for_want_of_room() -> None:
    membership = silent(trained("a", "b"), "b")
    waiting = Change(lost={"b"}, staying={0, 1}, chief=2)
    assert where(plan(membership, waiting)) == {0: "a", 1: "a", 2: "a", 3: "b"}
