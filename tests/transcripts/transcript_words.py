"""How the actions of a coordinator read in a transcript."""

from collections.abc import Iterator

from outlast.protocol.coordinator import Action, Commit, Load, Publish, Send
from outlast.protocol.election import Campaign, Renew, Watch
from outlast.protocol.messages import (
    Admitted,
    BeatAck,
    Check,
    Ended,
    Evicted,
    Message,
    NotLeading,
    ReportAck,
    ViewNews,
)
from outlast.protocol.views import PROCESS_SERIAL_BITS, Membership, Outcome, View


def action_in_words(action: Action, before: Membership | None) -> str:
    """One line; `before` is what the coordinator believes to be agreed."""
    match action:
        case Campaign():
            return "campaign"
        case Renew():
            return "renew the lease"
        case Watch():
            return f"watch the leadership after revision {action.after}"
        case Load():
            return "load"
        case Commit():
            compared = f"if still at revision {action.revision}, term {action.term}"
            return f"commit {_document(action.membership, before)}, {compared}"
        case Publish(message=ViewNews(view=view)):
            kind = ("planned " if view.planned else "") + ("paused " if view.paused else "")
            shards = " ".join(map(str, view.shards)) or "nobody"
            return f"publish {kind}view {_people(view)}, shards on {shards}"
        case Publish():
            return f"publish: {_message(action.message)}"
        case Send():
            return f"tell {action.to}: {_message(action.message)}"


def _document(after: Membership, before: Membership | None) -> str:
    """What is new in this document."""
    view = after.view
    if before is None:
        return f"view {view.number} as it was read"
    changed = f"view {_people(view)} ({view.cause})" if view != before.view else f"still view {view.number}"
    return "; ".join([changed, *_other_news(after, before)])


def _other_news(after: Membership, before: Membership) -> Iterator[str]:
    seats = [
        f"{replica}.{seat.incarnation} is {seat.standing}"
        for replica, seat in sorted(after.seats.items())
        if seat != before.seats.get(replica)
    ]
    if seats:
        yield ", ".join(seats)
    if after.active != before.active:
        yield f"view {after.active} is active"
    if after.departing != before.departing:
        lives = " ".join(f"{m.replica}.{m.incarnation}" for m in after.departing)
        yield f"{lives} still counted on" if lives else "nobody who left is counted on any more"
    if after.outcome is not None and before.outcome is None:
        yield _outcome(after.outcome)


def _people(view: View) -> str:
    members = " ".join(f"{m.replica}.{m.incarnation}" for m in view.members)
    learners = " ".join(f"{m.replica}.{m.incarnation}" for m in view.learners)
    words = f"{view.number} [{members}]"
    if learners:
        words += f" learning [{learners}]"
    return words + (f" lineage {view.lineage}" if view.lineage > 1 else "")


def _message(message: Message) -> str:
    match message:
        case BeatAck(noted=noted) if noted:
            serials = " ".join(str(process & (1 << PROCESS_SERIAL_BITS) - 1) for process in noted)
            return f"heard, and the exit of its process {serials} is noted"
        case BeatAck(failing=failing) if failing:
            return "heard, and one of its replicas is failing"
        case BeatAck() | ReportAck():
            return "heard"
        case Admitted():
            return f"admitted as {message.replica}.{message.incarnation}, from view {message.view} on"
        case ViewNews():
            return f"view {_people(message.view)}"
        case Evicted():
            return f"{message.replica}.{message.incarnation} is evicted"
        case Check():
            return "look now"
        case NotLeading():
            return f"ask {message.leader}" if message.leader else "nobody leads"
        case Ended():
            return _outcome(message.outcome)
        case _:
            raise AssertionError(f"no words for {message}")


def _outcome(outcome: Outcome) -> str:
    how = "finished" if outcome.finished else "failed"
    words = f"the job has {how}: {outcome.reason}"
    return f"{words}: {outcome.last_words!r}" if outcome.last_words else words
