"""Promises about steps: see `promises.py` for which there are, and why.

A record is known by its *branch* (the lineage, and the view of the newest fork behind it), its step, and the
view whose attempt made it. That another view makes it once more is right as long as nobody in that view holds
the first one: it was made by lives that are gone, and nobody came to depend on it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from outlast.observe.account import Account
from outlast.observe.view_promises import Promise
from outlast.protocol import events
from outlast.protocol.events import Life


class Place(NamedTuple):
    """A step on one branch."""

    lineage: int
    fork: int
    step: int

    def __str__(self) -> str:
        fork = f", fork {self.fork}" if self.fork else ""
        return f"step {self.step} of lineage {self.lineage}{fork}"


def steps_in_order(account: Account) -> Iterator[str]:
    """A life completes steps one after the other, unless it went back or was given a state."""
    for life, lines in account.lives.items():
        newest: int | None = None
        for line in lines:
            newest = None if line.dropped else newest
            match line.event:
                case events.Step(step=step):
                    if newest is not None and step != newest + 1:
                        yield f"{_name(life)} completes step {step} after step {newest}"
                    newest = step
                case events.WentBack(step=step):
                    newest = step
                case events.Restored(step=step):
                    newest = _restored(newest, step)


def _restored(newest: int | None, step: int) -> int:
    """A large state takes a while to be loaded, and the records that follow it may be there before."""
    return step if newest is None else max(newest, step)


def attempts_in_own_views(account: Account) -> Iterator[str]:
    """A life completes attempts only in views of which it is a member, and never in one older than before."""
    for life, lines in account.lives.items():
        newest = 0
        for line in lines:
            step = line.event
            if not isinstance(step, events.Step) or not step.own:
                continue
            if step.view < newest:
                yield f"{_name(life)} completes step {step.step} in view {step.view} after view {newest}"
            newest = max(newest, step.view)
            view = account.views.get(step.view)
            if view is not None and life not in view.members:
                yield f"{_name(life)} completes step {step.step} in view {step.view}, and is no member of it"


def one_record(account: Account) -> Iterator[str]:
    """All who complete the same attempt have the same loss, bit for bit, and give no other one away."""
    made: dict[Place, dict[int, str]] = defaultdict(dict)
    for life, step in _steps(account):
        if step.own:
            bits = made[_place(step)].setdefault(step.view, _bits(step))
            if bits != _bits(step):
                yield f"{_name(life)} has another loss than others in {_place(step)}, view {step.view}"
    for life, step in _steps(account):
        known = made.get(_place(step))
        if not step.own and known and _bits(step) not in known.values():
            yield f"{_name(life)} was given {_place(step)} with a loss that nobody has who made it"


def held_is_not_made_again(account: Account) -> Iterator[str]:
    """No view makes a step again that one of its members holds."""
    made = _made(account)
    for place, views in made.items():
        for earlier, holders in views.items():
            for later in views:
                view = account.views.get(later)
                if later > earlier and view is not None and (still := holders & set(view.members)):
                    yield f"{place} is made again in view {later}; {_name(min(still))} has it from {earlier}"


def stable_is_kept(account: Account) -> Iterator[str]:
    """A step once stable is never made again on its branch while one of the members of then is there."""
    made = _made(account)
    told: set[tuple[Place, int]] = set()
    for lines in account.lives.values():
        for line in lines:
            if isinstance(line.event, events.Stable):
                stable = line.event
                told.add((Place(stable.lineage, stable.fork, stable.step), stable.view))
    for place, number in sorted(told):
        members = set(account.views[number].members) if number in account.views else set()
        for later in made.get(place, ()):
            view = account.views.get(later)
            if later > number and view is not None and (still := members & {*view.members, *view.learners}):
                yield f"{place} was stable in view {number}; {later} makes it again with {_name(min(still))}"


def stable_is_held(account: Account) -> Iterator[str]:
    """A life calls only those steps stable that it holds."""
    for life, lines in account.lives.items():
        newest: int | None = None
        for line in lines:
            newest = None if line.dropped else newest
            match line.event:
                case events.Step(step=step) | events.WentBack(step=step):
                    newest = step
                case events.Restored(step=step):
                    newest = _restored(newest, step)
                case events.Stable(step=step) if newest is not None and step > newest:
                    yield f"{_name(life)} calls step {step} stable, and holds step {newest}"


def over_is_over(account: Account) -> Iterator[str]:
    """A life that is over completes nothing and adopts nothing any more."""
    for life, lines in account.lives.items():
        over = ""
        for line in lines:
            match line.event:
                case events.LifeOver(replica=replica, incarnation=number) if Life(replica, number) == life:
                    over = line.event.reason
                case events.Step() | events.Stable() | events.View() | events.Restored() if over:
                    kind = line.event.__struct_config__.tag
                    yield f"{_name(life)} is over ({over}), and tells of a {kind} afterwards"


STEP_PROMISES: tuple[Promise, ...] = (
    steps_in_order,
    attempts_in_own_views,
    one_record,
    held_is_not_made_again,
    stable_is_kept,
    stable_is_held,
    over_is_over,
)


def _steps(account: Account) -> Iterator[tuple[Life, events.Step]]:
    for life, lines in account.lives.items():
        for line in lines:
            if isinstance(line.event, events.Step):
                yield life, line.event


def _made(account: Account) -> dict[Place, dict[int, set[Life]]]:
    """Which views have made a step by an attempt, and who has completed that."""
    made: dict[Place, dict[int, set[Life]]] = defaultdict(lambda: defaultdict(set))
    for life, step in _steps(account):
        if step.own:
            made[_place(step)][step.view].add(life)
    return made


def _place(step: events.Step) -> Place:
    return Place(step.lineage, step.fork, step.step)


def _bits(step: events.Step) -> str:
    return "none" if step.loss is None else step.loss.hex()


def _name(life: Life) -> str:
    return f"replica {life.replica}, life {life.incarnation},"
