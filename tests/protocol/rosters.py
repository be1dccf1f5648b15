"""Memberships and changes to plan with, for the tests of the roster."""

from dataclasses import replace

from outlast.protocol.messages import Register
from outlast.protocol.roster import Change, Removal, plan
from outlast.protocol.views import JobSpec, Membership, Standing, View

PROCESSES_APART = 100


def first_process(replica: int) -> int:
    return PROCESSES_APART * replica + 1


def empty(replicas: int = 3, least: int = 1) -> Membership:
    return Membership(spec=JobSpec(name="job", replicas=replicas, shards=6, min_replicas=least))


def arrivals(*replicas: int, life: int = 1, rejoin: int = 0) -> dict[int, Register]:
    """Registrations of the n-th process of each of these replicas."""
    return {
        replica: Register(
            replica=replica,
            process=first_process(replica) + life - 1,
            rejoin=rejoin,
            agent=f"agent-{replica}",
            address=f"host-{replica}:1",
        )
        for replica in replicas
    }


def formed(replicas: int = 3, least: int = 1) -> Membership:
    """A job in its first view, which everybody has adopted."""
    return plan(empty(replicas, least), Change(arrivals=arrivals(*range(replicas))))


def with_learner(replica: int, replicas: int = 3) -> Membership:
    """A job that has lost a replica, whose next life is a learner now, in an active view."""
    lost = plan(formed(replicas), Change(removals=dead(replica)))
    learning = plan(lost, Change(arrivals=arrivals(replica, life=2)))
    return activated(learning)


def activated(membership: Membership) -> Membership:
    return plan(membership, adopted_by(membership, *(member.replica for member in membership.view.members)))


def adopted_by(membership: Membership, *replicas: int, view: int | None = None) -> Change:
    """These have put the newest view into force, or the one with that number."""
    number = membership.view.number if view is None else view
    return Change(adopted=dict.fromkeys(replicas, number))


def dead(*replicas: int, life: int = 1) -> dict[int, Removal]:
    """The agents saw these processes exit."""
    return {r: _removal(r, life, Standing.GONE, f"replica {r} was killed", True) for r in replicas}


def done(*replicas: int, chief: int = 0) -> dict[int, Removal]:
    """The agents saw these processes exit after all of their work."""
    removals = {r: _removal(r, 1, Standing.FINISHED, f"replica {r} has finished", True) for r in replicas}
    return {r: replace(removal, planned=True, closes=r == chief) for r, removal in removals.items()}


def leaving(*replicas: int, life: int = 1) -> dict[int, Removal]:
    """These have asked to leave, and work on until the others can do without them."""
    return {
        r: Removal(
            process=first_process(r) + life - 1,
            standing=Standing.EVICTED,
            cause=f"replica {r} leaves",
            proven=True,
            planned=True,
        )
        for r in replicas
    }


def doubted(*replicas: int, life: int = 1) -> dict[int, Removal]:
    """Nothing is heard of these."""
    return {r: _removal(r, life, Standing.EVICTED, f"replica {r} is silent", False) for r in replicas}


def _removal(replica: int, life: int, standing: Standing, cause: str, proven: bool) -> Removal:
    return Removal(process=first_process(replica) + life - 1, standing=standing, cause=cause, proven=proven)


def names(view: View) -> str:
    """For example `0.1 2.1 + 1.2`: the members, then the learners, each as replica.incarnation."""
    members = " ".join(f"{m.replica}.{m.incarnation}" for m in view.members)
    learners = " ".join(f"{m.replica}.{m.incarnation}" for m in view.learners)
    return f"{members} + {learners}" if learners else members
