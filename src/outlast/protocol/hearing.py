"""Second opinions: who computes what again, and what follows from the comparison.

When numbers look wrong, the first question is whether anybody else gets the same. So a *hearing* names, for
each contribution that is heard, the *witnesses* who compute it anew, and for each slice that is audited the
*auditors* who reduce it anew. Owners compare the versions, and everybody comes to the same verdict from what
owners say. All of this is pure functions of what every member holds.

A *doubted* contribution (its numbers are not sane) has one witness:

- the same bits: data or model is at fault. It is left out, and nobody is blamed;
- other bits, and sane ones: whoever sent the first version is blamed;
- other bits, not sane either: left out, and nobody is blamed.

Where an *audit* finds sane versions that differ, or sums that do, the numbers do not say who is wrong. Of
three who compute the same, the odd one is. Where there are only two members, whoever contradicts itself is
blamed; if both stand by what they said, nobody is.

Who is alone can only ask itself. It blames nobody, and takes a second version that is sane.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from outlast.protocol.tree import Node
from outlast.protocol.views import Charge, View

_OPEN = ". Nobody can tell which of them is wrong"


@dataclass(frozen=True)
class Hearing:
    """What is heard, and by whom."""

    witnesses: Mapping[Node, tuple[int, ...]] = field(default_factory=dict)
    """Heard contribution → who computes it again; the order is that of its versions, after the first."""
    doubted: frozenset[Node] = frozenset()
    """Those that are heard because of their numbers."""
    auditors: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Owner of an audited slice → who reduces it again; the owner itself comes last."""

    def of(self, replica: int) -> list[Node]:
        """What this replica is to compute again."""
        return sorted(node for node, witnesses in self.witnesses.items() if replica in witnesses)

    def audited_by(self, replica: int) -> list[int]:
        """The owners whose slices this replica reduces again, beside its own."""
        return [owner for owner, some in self.auditors.items() if replica in some and replica != owner]


@dataclass(frozen=True)
class Blame:
    replica: int
    reason: str


@dataclass
class Verdict:
    """What a hearing has found."""

    blamed: list[Blame] = field(default_factory=list)
    left_out: list[Node] = field(default_factory=list)
    replaced: dict[Node, int] = field(default_factory=dict)
    """For one who is alone: which version counts instead of the first."""
    undecided: list[str] = field(default_factory=list)
    """What differs without anybody being known to be wrong; for people."""
    reduce_again: bool = False
    """Members hold different copies of a slice."""

    def charges(self, view: View, step: int) -> list[Charge]:
        """One for each who is blamed, for the coordinator."""
        reasons: dict[int, list[str]] = {}
        for blame in self.blamed:
            reasons.setdefault(blame.replica, []).append(blame.reason)
        accused = [(member, reasons[member.replica]) for member in view.members if member.replica in reasons]
        return [
            Charge(
                view=view.number,
                step=step,
                reason=said[0] + (f" (and {len(said) - 1} more)" if len(said) > 1 else ""),
                replica=member.replica,
                incarnation=member.incarnation,
            )
            for member, said in accused
        ]

    @property
    def changes(self) -> bool:
        """Whether the first result does not stand."""
        return bool(self.left_out or self.replaced) or self.reduce_again


def call(
    members: Sequence[int],
    holder: Mapping[Node, int],
    *,
    doubted: Iterable[Node] = (),
    audited: Iterable[Node] = (),
    owners: Iterable[int] = (),
) -> Hearing:
    """Who is to witness what. Contributions and owners have been chosen already."""
    doubts = frozenset(doubted)
    suspects = {holder[node] for node in doubts}
    load = dict.fromkeys(members, 0)
    witnesses: dict[Node, tuple[int, ...]] = {}
    for node in sorted({*doubts, *audited}):
        own = holder[node]
        # Those who are not doubted themselves come first, then those who have the least to do.
        others = _after(members, own)
        others.sort(key=lambda m: (m in suspects, load[m]))
        if node in doubts:
            chosen = tuple(others[:1]) or (own,)
        else:
            chosen = tuple(others[:2]) if len(others) >= 2 else (*others, own)
        for witness in chosen:
            load[witness] += node.size
        witnesses[node] = chosen
    return Hearing(witnesses, doubts, {owner: _auditors(members, owner) for owner in sorted(owners)})


def _auditors(members: Sequence[int], owner: int) -> tuple[int, ...]:
    """Two others, or the one there is; and the owner once more."""
    return (*_after(members, owner)[:2], owner)


def _after(members: Sequence[int], one: int) -> list[int]:
    """The others, beginning with the one that follows."""
    place = list(members).index(one)
    return [*members[place + 1 :], *members[:place]]


def hear(
    verdict: Verdict,
    node: Node,
    hearing: Hearing,
    holder: int,
    versions: Sequence[int],
    sane: Sequence[bool],
    *,
    exact: bool = True,
) -> None:
    """What is to be said of one contribution. `versions` has the same number for versions that are the same
    bits: first the one that was sent, then those of the witnesses. Where machines may differ (not `exact`),
    bits prove nothing, and only what is not sane does."""
    witnesses = hearing.witnesses[node]
    shards = named(node)
    if node in hearing.doubted:
        if not sane[1] or versions[0] == versions[1]:
            verdict.left_out.append(node)
        elif witnesses[0] == holder:
            verdict.replaced[node] = 1
            verdict.undecided.append(
                f"replica {holder} computed {shards} twice, with different results. The one that is sane "
                "counts; its machine is not to be trusted"
            )
        elif exact:
            verdict.blamed.append(
                Blame(holder, f"replica {witnesses[0]} computed {shards} again, with another result")
            )
        else:
            verdict.left_out.append(node)
        return
    if len(set(versions)) == 1:
        return
    odd = _odd_one((*witnesses, holder), (*versions[1:], versions[0]), said_first=versions[0])
    if odd is None:
        verdict.undecided.append(f"replicas {_listed({holder, *witnesses})} disagree about {shards}{_OPEN}")
    else:
        others = _listed({holder, *witnesses} - {odd}) or str(odd)
        verdict.blamed.append(Blame(odd, f"an audit of {shards} by replica {others} had another result"))


def audit(
    verdict: Verdict,
    owner: int,
    hearing: Hearing,
    held: Mapping[int, bytes],
    reduced: Mapping[int, bytes],
) -> None:
    """What is to be said of one owner's sums: `held` is what each member holds of its slice, `reduced` what
    each auditor came to."""
    auditors = hearing.auditors[owner]
    published = held[owner]
    results = [reduced[auditor] for auditor in auditors]
    if len({*held.values(), *results}) == 1:
        return
    misled = [m for m in sorted(held) if held[m] != published]
    if len(set(results)) == 1 and results[0] == published:
        # The owner's own copy is right. What others hold may be its fault, or their own.
        if len(misled) > 1 and len({held[m] for m in misled}) == 1:
            verdict.blamed.append(Blame(owner, f"it gave other sums to replicas {_listed(misled)}"))
        else:
            verdict.reduce_again = True
            verdict.undecided.append(
                f"replica {_listed(misled)} holds other sums than replica {owner} published{_OPEN}"
            )
        return
    odd = _odd_one(auditors, results, said_first=published)
    if odd is None:
        verdict.reduce_again = True
        verdict.undecided.append(
            f"replicas {_listed(auditors)} disagree about the sums of replica {owner}{_OPEN}"
        )
    else:
        others = _listed(set(auditors) - {odd})
        what = "its sums are" if odd == owner else f"its audit of replica {owner}'s sums is"
        verdict.blamed.append(Blame(odd, f"{what} not those that replica {others or odd} came to"))


def _odd_one(who: Sequence[int], said: Sequence[object], *, said_first: object) -> int | None:
    """Who is wrong: the last of `who` is the one whose word is examined, and `said_first` its first word."""
    examined = who[-1]
    others = [word for one, word in zip(who, said, strict=True) if one != examined]
    if len(others) >= 2:
        if len(set(others)) == 1:
            return examined
        agreeing = [word == said_first for word in others]
        return who[agreeing.index(False)] if sum(agreeing) == len(others) - 1 else None
    if not others or said[who.index(examined)] == said_first:
        return None
    return examined


def named(node: Node) -> str:
    return f"shard {node.lo}" if node.size == 1 else f"shards {node.lo} to {node.hi - 1}"


def _listed(replicas: Iterable[int]) -> str:
    return " and ".join(str(replica) for replica in sorted(replicas))
