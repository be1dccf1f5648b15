"""Clusters as tests describe them: a name for each member, in capital letters where it does not answer."""

from outlast.coordinator.store.gateway import Endpoint
from outlast.etcd.cluster import Member, Picture, Status


def member(name: str, *, learner: bool = False, started: bool = True) -> Member:
    number = ord(name.lower())
    return Member(
        id=str(number),
        name=name.lower() if started else "",
        peer_urls=(f"http://{name.lower()}:2380",),
        clients=(Endpoint(name.lower(), 2379),) if started else (),
        learner=learner,
    )


def status(one: Member, leader: str, *, version: str = "3.5.28", db_bytes: int = 20480) -> Status:
    return Status(
        member=one.id,
        cluster="7",
        version=version,
        leader=leader,
        db_bytes=db_bytes,
        used_bytes=db_bytes,
        learner=one.learner,
    )


def picture(names: str, *others: Member, leader: str = "a", version: str = "3.5.28") -> Picture:
    """`picture("abC")`: three voters, of which c does not answer. `others` answer if they were started."""
    members = (*(member(name) for name in names), *others)
    up = [one for one, name in zip(members, names, strict=False) if name.islower()]
    up += [one for one in others if one.name]
    number = str(ord(leader)) if leader else "0"
    return Picture(
        members=members,
        statuses={one.id: status(one, number, version=version) for one in up},
        silent={one.id: "Connection refused" for one in members if one not in up},
    )
