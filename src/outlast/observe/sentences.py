"""Events in plain English: one sentence each, and how much it matters.

The sentence does not say who speaks; where that is not clear, whoever shows it puts the name in front.
"""

from __future__ import annotations

import logging

from outlast.observe.written import Unknown
from outlast.protocol import events
from outlast.protocol.events import Life


def level(event: events.AnyEvent | Unknown) -> int:
    """What a person must know is a warning; what happens in every step is for who looks for something."""
    match event:
        case events.Step() | events.Stable() | events.Saved(stage="decided") | Unknown():
            return logging.DEBUG
        case events.Died() | events.Evicted() | events.Standstill() | events.Screened() | events.WentBack():
            return logging.WARNING
        case events.ConnectionLost() | events.Saved(stage="given_up") | events.Ended(state="failed"):
            return logging.WARNING
    return logging.INFO


def sentence(event: events.AnyEvent | Unknown) -> str:
    return _of_processes(event) or _of_steps(event)


def _of_processes(event: events.AnyEvent | Unknown) -> str:
    match event:
        case events.Begun():
            return f"the run {event.run} begins with {event.replicas} replicas and {event.shards} shards"
        case events.Started():
            return f"{event.who} is started as process {event.pid}"
        case events.Restarted():
            return f"{event.who} is started again{_after(event.cause)}"
        case events.Died():
            return f"{event.who} died: it {event.cause}"
        case events.Joined():
            return f"replica {event.replica} takes part in its life {event.incarnation}"
        case events.LifeOver():
            return f"replica {event.replica}: its life {event.incarnation} is over, {event.reason}"
        case events.View():
            return _view(event)
        case events.Evicted():
            charged = "charged by the others: " if event.evidence == "charge" else ""
            return f"replica {event.replica} is out from view {event.view} on ({charged}{event.cause})"
        case events.Promoted():
            return f"replica {event.replica} has caught up, and is a member from view {event.view} on"
        case events.Standstill():
            return f"all waited for each other, so view {event.view} begins the step again ({event.cause})"
        case events.Leading():
            return f"this coordinator decides from here on; the newest view is {event.view}"
        case events.Ended():
            return f"the job is over: {event.state}" + (f" ({event.reason})" if event.reason else "")
    return ""


def _of_steps(event: events.AnyEvent | Unknown) -> str:
    match event:
        case events.Step():
            loss = "" if event.loss is None else f", loss {event.loss:.6g}"
            return f"step {event.step} {'is done' if event.own else 'was given'} in view {event.view}{loss}"
        case events.Stable():
            return f"step {event.step} is stable in view {event.view}"
        case events.Screened():
            left_out = f"shards {_numbers(event.left_out)} are left out" if event.left_out else ""
            charged = f"replicas {_numbers(event.charged)} are charged" if event.charged else ""
            found = " and ".join(part for part in (left_out, charged) if part) or "nothing is wrong"
            return f"step {event.step} was doubted: {found}" + (f" ({event.reason})" if event.reason else "")
        case events.WentBack():
            why = event.reason or "the states of members differed"
            return f"back to the state after step {event.step}: {why} (view {event.fork})"
        case events.Saved():
            what = f"the checkpoint of step {event.step}" + (f" ({event.name})" if event.name else "")
            if event.stage == "given_up":
                return f"{what} is given up" + (f": {event.reason}" if event.reason else "")
            return f"{what} is {'decided on' if event.stage == 'decided' else 'saved'}"
        case events.Restored():
            name = f" {event.name}" if event.name else ""
            origin = {"members": "given by members", "beginning": "the beginning"}
            return f"the state after step {event.step}: {origin.get(event.origin, f'from checkpoint{name}')}"
        case events.ConnectionLost():
            why = f": {event.cause}" if event.cause else ""
            return f"the connection to replica {event.peer} broke{why}"
        case Unknown():
            return f"{event.what}, which this version of Outlast does not know"
    return event.__class__.__name__


def _view(event: events.View) -> str:
    learners = f", learning {_lives(event.learners)}" if event.learners else ""
    paused = ", paused" if event.paused else ""
    cause = f" ({event.cause})" if event.cause else ""
    return f"view {event.number}: members {_lives(event.members) or 'none'}{learners}{paused}{cause}"


def _after(cause: str) -> str:
    return f": the one before {cause}" if cause else ""


def _lives(lives: tuple[Life, ...]) -> str:
    return ",".join(f"{life.replica}.{life.incarnation}" for life in lives)


def _numbers(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))
