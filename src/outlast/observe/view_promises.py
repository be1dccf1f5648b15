"""Promises about who takes part, and about the end: see `promises.py` for which there are, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from outlast.observe.account import Account, replica_of
from outlast.observe.written import Written
from outlast.protocol import events
from outlast.protocol.events import Life

Promise = Callable[[Account], Iterator[str]]


def one_membership(account: Account) -> Iterator[str]:
    """A view number names one membership, everywhere and for ever."""
    for (source, pid), lines in account.processes.items():
        for view in _views(lines):
            known = account.views[view.number]
            if _who(view) != _who(known):
                yield f"{source} ({pid}): view {view.number} has other members than elsewhere: {_who(view)}"


def numbers_grow_by_one(account: Account) -> Iterator[str]:
    """The views that a coordinator agrees on are numbered one after the other."""
    for (source, pid), lines in account.processes.items():
        if not source.startswith("coordinator"):
            continue
        newest: int | None = None
        for line in lines:
            newest = None if line.dropped else newest
            if isinstance(line.event, events.Leading):
                # It begins with what it has read, which may be what it knows already.
                newest = None
            elif isinstance(line.event, events.View):
                if newest is not None and line.event.number != newest + 1:
                    yield f"{source} ({pid}): view {newest} is followed by view {line.event.number}"
                newest = line.event.number


def views_never_go_back(account: Account) -> Iterator[str]:
    """The views that a process adopts only grow, and each holds the life that adopts it."""
    for replica, lines in account.replicas():
        newest = 0
        for line in lines:
            if not isinstance(line.event, events.View):
                continue
            number, me = line.event.number, Life(replica, line.incarnation)
            who = f"replica {replica} ({line.pid})"
            if number <= newest:
                yield f"{who} adopts view {number} after view {newest}"
            newest = max(newest, number)
            if me not in line.event.members and me not in line.event.learners:
                yield f"{who} adopts view {number}, which does not hold its life {me.incarnation}"


def no_eviction_without_a_cause(account: Account) -> Iterator[str]:
    """Nobody is evicted without a cause, and the view that does it does not hold the life."""
    for (source, pid), lines in account.processes.items():
        for line in lines:
            if not isinstance(line.event, events.Evicted):
                continue
            gone = line.event
            life = Life(gone.replica, gone.incarnation)
            if not gone.cause.strip():
                yield f"{source} ({pid}): replica {gone.replica} is evicted, and nobody says why"
            if gone.view in account.views and account.holds(gone.view, life):
                yield f"{source} ({pid}): replica {gone.replica} is evicted from view {gone.view}, and in it"


def finished_means_done(account: Account) -> Iterator[str]:
    """A job is called finished only after its chief has ended its work."""
    lines = [line for written in account.processes.values() for line in written]
    finished = any(isinstance(one.event, events.Ended) and one.event.state == "finished" for one in lines)
    closed = any(isinstance(one.event, events.LifeOver) and one.event.closes for one in lines)
    agents = {source for source, _ in account.processes if source.startswith("agent-")}
    # One that was killed may have known, and taken that along.
    died = {one.event.who for one in lines if isinstance(one.event, events.Died)}
    whole = agents and not agents & died and all(account.pids(agent) == 1 for agent in agents)
    if finished and not closed and whole and not any(line.dropped for line in lines):
        yield "the job is called finished, and no agent has seen its chief end its work"


def ends_once(account: Account) -> Iterator[str]:
    """A job ends once, and a launcher calls finished only what was agreed on as finished."""
    told: dict[str, set[str]] = {}
    for (source, pid), lines in account.processes.items():
        ends = [line.event for line in lines if isinstance(line.event, events.Ended)]
        told.setdefault(source, set()).update(end.state for end in ends)
        if len(ends) > 1:
            yield f"{source} ({pid}): the job ends {len(ends)} times"
    agreed = [states for source, states in told.items() if source.startswith("coordinator")]
    if "finished" in told.get("launcher", ()) and any("failed" in states for states in agreed):
        yield "the launcher calls a job finished that was agreed to have failed"


def deaths_are_final(account: Account) -> Iterator[str]:
    """A life that its agent has seen end does not take part again."""
    for (source, pid), lines in account.processes.items():
        gone: set[Life] = set()
        for line in lines:
            match line.event:
                case events.Died(who=who, incarnation=life) if (number := replica_of(who)) is not None:
                    gone.add(Life(number, life))
                case events.Joined(replica=replica, incarnation=life) if Life(replica, life) in gone:
                    yield f"{source} ({pid}): life {life} of replica {replica} takes part after its death"


VIEW_PROMISES: tuple[Promise, ...] = (
    one_membership,
    numbers_grow_by_one,
    views_never_go_back,
    no_eviction_without_a_cause,
    finished_means_done,
    ends_once,
    deaths_are_final,
)


def _views(lines: Iterable[Written]) -> Iterator[events.View]:
    return (line.event for line in lines if isinstance(line.event, events.View))


def _who(view: events.View) -> str:
    members = ",".join(f"{m.replica}.{m.incarnation}" for m in view.members)
    learners = ",".join(f"{m.replica}.{m.incarnation}" for m in view.learners)
    return f"lineage {view.lineage}, era {view.planned_since}, members [{members}], learners [{learners}]"
