"""What a person sees of a run: plain lines in a log, a live table in a terminal.

Both are driven by the same few calls. All printing happens in a thread of its own, behind a bounded queue:
a terminal that stands still must never hold up the launcher, which has processes to look after.
"""

import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from outlast.protocol.messages import Phase, Pulse, Status
from outlast.protocol.views import Seat, Standing, View

QUEUED_LINES = 10_000

_STYLES = {
    Standing.MEMBER: "green",
    Standing.LEARNER: "cyan",
    Standing.EVICTED: "yellow",
    Standing.GONE: "red",
    Standing.FINISHED: "dim",
}
_PHASES = {
    Phase.STARTING: "starting",
    Phase.COMPUTING: "computing",
    Phase.WAITING: "waiting",
    Phase.ASIDE: "aside",
    Phase.DONE: "done",
}


class Display(Protocol):
    def line(self, stream: str, text: str) -> None: ...
    def say(self, text: str) -> None: ...
    def view(self, view: View) -> None: ...
    def status(self, status: Status) -> None: ...
    def close(self) -> bool:
        """Show what is left; False if the terminal does not take it."""
        ...


class Printer:
    """Calls what it is given, one after the other, in its own thread."""

    def __init__(self, say_left_out: Callable[[str], None]) -> None:
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue(QUEUED_LINES)
        self._say_left_out = say_left_out
        self._left_out = 0
        self._thread = threading.Thread(target=self._run, name="outlast-printer", daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], None]) -> None:
        # The replicas' logs have every line; a terminal that is this far behind does without some, until half
        # of what waits has been printed, so that one note stands for many lines.
        if self._left_out and self._queue.qsize() > QUEUED_LINES // 2:
            self._left_out += 1
            return
        try:
            self._note_left_out()
            self._queue.put_nowait(job)
        except queue.Full:
            self._left_out += 1

    def close(self, within_s: float = 2.0) -> bool:
        """Do what is left to do; False if it was not done in time."""
        deadline = time.monotonic() + within_s
        try:
            self._note_left_out(within_s)
            self._queue.put(None, timeout=max(0.0, deadline - time.monotonic()))
        except queue.Full:
            return False
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _note_left_out(self, within_s: float = 0.0) -> None:
        if self._left_out:
            note = f"… {self._left_out} lines are left out here; the logs have them"
            self._queue.put(lambda: self._say_left_out(note), block=within_s > 0, timeout=within_s or None)
            self._left_out = 0

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            try:
                job()
            except OSError:
                # Nobody reads our output any more; the job is not over for that.
                continue


class PlainDisplay:
    """Lines only: replicas' output where it belongs, our own on standard error."""

    def __init__(self) -> None:
        self._printer = Printer(lambda note: print(note, file=sys.stderr, flush=True))

    def line(self, stream: str, text: str) -> None:
        target = sys.stdout if stream == "stdout" else sys.stderr
        self._printer.put(lambda: print(text, file=target, flush=True))

    def say(self, text: str) -> None:
        self.line("stderr", f"outlast: {text}")

    def view(self, view: View) -> None:
        self.say(describe(view))

    def status(self, status: Status) -> None:
        pass

    def close(self) -> bool:
        return self._printer.close()


class LiveDisplay:
    """A line per replica at the bottom of the terminal, with the replicas' output scrolling above it."""

    def __init__(self) -> None:
        self._printer = Printer(lambda note: self._console.print(note))
        self._console = Console(stderr=True, highlight=False)
        self._live = Live(console=self._console, refresh_per_second=8, transient=True)
        self._live.start()

    def line(self, stream: str, text: str) -> None:
        if stream == "stdout" and not sys.stdout.isatty():
            self._printer.put(lambda: print(text, flush=True))
            return
        self._printer.put(lambda: self._console.print(_prefixed(text), soft_wrap=True))

    def say(self, text: str) -> None:
        self._printer.put(lambda: self._console.print(Text(text, style="bold"), soft_wrap=True))

    def view(self, view: View) -> None:
        self.say(describe(view))

    def status(self, status: Status) -> None:
        self._printer.put(lambda: self._live.update(render(status)))

    def close(self) -> bool:
        self._printer.put(self._live.stop)
        return self._printer.close()


def describe(view: View) -> str:
    """One view as one line."""
    members = ",".join(str(member.replica) for member in view.members) or "none"
    learners = ",".join(str(member.replica) for member in view.learners)
    return (
        f"view {view.number}: members {members}"
        + (f", learning {learners}" if learners else "")
        + (f" ({view.cause})" if view.cause else "")
    )


def waiting(status: Status) -> str:
    """What keeps training from going on, if it is a lack of replicas; or nothing."""
    forming = not status.view.members and status.needed > 1
    if status.outcome is not None or not (status.view.paused or forming):
        return ""
    there = len(status.view.members) or sum(seat.present for seat in status.seats)
    if not 0 < there < status.needed:
        return ""
    return f"waiting: {there} of at least {counted(status.needed, 'replica')}"


def render(status: Status) -> Group:
    """The whole status as a table with a line per replica."""
    pulses = {pulse.replica: pulse for pulse in status.pulses}
    table = Table.grid(padding=(0, 2))
    for seat in sorted(status.seats, key=lambda seat: seat.replica):
        pulse = pulses.get(seat.replica)
        table.add_row(
            f"replica {seat.replica}",
            Text(seat.standing.value, style=_STYLES[seat.standing]),
            f"life {seat.incarnation}",
            f"step {pulse.step}" if pulse is not None else "",
            _doing(seat, pulse),
            f"{pulse.pace_s * 1e3:.0f} ms/step" if pulse is not None and pulse.pace_s else "",
            f"pid {pulse.pid}" if pulse is not None else "",
            seat.agent,
        )
    parts: list[Table | Text] = [Text(f"{status.job}  view {status.view.number}", style="bold"), table]
    if words := waiting(status):
        parts.append(Text(words, style="yellow"))
    if status.charges:
        last = status.charges[-1]
        against = f"against replica {last.replica}" if last.replica >= 0 else "against nobody"
        parts.append(Text(f"last charge, {against}: step {last.step}: {last.reason}", style="yellow"))
    if status.saving:
        parts.append(Text(f"checkpoints: {status.saving}"))
    if status.silent:
        parts.append(Text(f"not heard from: {', '.join(status.silent)}", style="yellow"))
    if status.rejected:
        counted = ", ".join(f"{count} {reason}" for reason, count in sorted(status.rejected.items()))
        parts.append(Text(f"turned away: {counted}", style="yellow"))
    if status.trouble:
        parts.append(Text(status.trouble, style="red"))
    if status.outcome is not None:
        parts.append(Text(status.outcome.reason, style="green" if status.outcome.finished else "red"))
    return Group(*parts)


def _doing(seat: Seat, pulse: Pulse | None) -> str:
    if seat.barred:
        return f"not let in again, after {counted(seat.offences, 'wrong result')}"
    if pulse is None:
        return "not running" if seat.standing is Standing.GONE else ""
    if pulse.stopped_s > 0:
        return f"stopped {pulse.stopped_s:.0f} s"
    return _PHASES[pulse.phase]


def counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _prefixed(text: str) -> Text:
    head, bracket, rest = text.partition("] ")
    if not bracket or not head.startswith("["):
        return Text(text)
    return Text.assemble((head + bracket, "cyan"), rest)
