"""A stand-in for a training script: joins, works in lock-step with its peers, and is easy to torment.

    outlast run -n 4 -m outlast.testing.standin --steps 500 --step-s 0.02

It needs no torch. Each step it works for a while (sleeping, or burning CPU with --busy) and then waits for
all members of its view. SIGUSR1 makes its main thread hang. With --trace it writes a line of JSON for every
view it adopts, with the machine's monotonic time, for tests and benchmarks to read. Its views and lives are
in the run's events, too.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TextIO

from outlast.errors import UsageError
from outlast.observe.files import open_events
from outlast.protocol import events
from outlast.protocol.messages import Phase
from outlast.protocol.views import View
from outlast.testing.board import Board
from outlast.train.link import Link
from outlast.wire.handover import handover
from outlast.wire.rundir import RunDirectory

LOOK_EVERY_S = 0.003


class StandIn:
    def __init__(self, arguments: argparse.Namespace) -> None:
        hand = handover()
        if hand is None:
            raise UsageError(
                "the stand-in is a replica: start it with `outlast run -m outlast.testing.standin`"
            )
        self._arguments = arguments
        self._hanging = False
        self._trace: TextIO | None = None
        if arguments.trace is not None:
            self._trace = (arguments.trace / f"replica-{hand.replica}.trace").open("a", buffering=1)
        self._board = Board(hand.run / "standin.board")
        self._events = open_events(RunDirectory(hand.run, hand.run_id), f"replica-{hand.replica}")
        self._link = Link(hand, on_view=self._adopted)
        self._step = 0

    def run(self) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: setattr(self, "_hanging", True))
        self._link.open()
        while self._step < self._arguments.steps and self._link.outcome is None:
            if self._link.fenced is not None:
                self._say(f"fenced: {self._link.fenced}")
                self._tell_end(self._link.fenced)
                self._link.progress.enter(Phase.STARTING)
                self._link.rejoin()
            if not self._join():
                continue
            if not self._work_in(self._link.view):
                break
        # There is no chief here: all do the same, and each end counts.
        self._link.progress.close_job()
        self._link.progress.enter(Phase.DONE)
        self._say(f"done at step {self._step}")
        # No view is told of behind that.
        self._link.close()
        self._tell_end("it has finished", finished=True)
        self._events.close()

    def _tell_end(self, reason: str, *, finished: bool = False) -> None:
        life, replica = self._link.incarnation, self._link.replica
        over = events.LifeOver(replica=replica, incarnation=life, reason=reason, finished=finished)
        self._events.emit(over, life)

    def _join(self) -> bool:
        """Wait for a view that has this life as a member; a learner says that it is ready at once."""
        view = self._link.view
        self._link.wait(lambda: self._link.view is not view or self._in_view())
        if self._link.fenced is not None or self._link.outcome is not None:
            return False
        if not self._link.is_member:
            self._link.ready()
        return self._link.is_member

    def _in_view(self) -> bool:
        return self._link.view.holds(self._link.replica, self._link.incarnation)

    def _work_in(self, view: View) -> bool:
        """Do steps until the view is over; False when this replica leaves for good."""
        progress, replica = self._link.progress, self._link.replica
        progress.adopt(view.number)
        self._board.enter(replica, view, self._step)
        if not self._wait_for_all(view, 1):
            return not self._left()
        self._step = max(self._step, self._board.newest_step(view))
        round_ = 1
        while self._step < self._arguments.steps:
            if self._link.leave_requested:
                self._link.leave()
            progress.enter(Phase.COMPUTING)
            self._work()
            round_ += 1
            self._board.reach(replica, view, round_)
            if not self._wait_for_all(view, round_):
                return not self._left()
            self._step += 1
            progress.advance(self._step)
            progress.contribute(self._step)
            if self._arguments.talk and self._step % self._arguments.talk == 0:
                self._say(f"step {self._step}")
        return True

    def _wait_for_all(self, view: View, round_: int) -> bool:
        self._link.progress.enter(Phase.WAITING)
        while self._link.view is view and self._link.outcome is None:
            if self._board.complete(view, round_):
                return True
            time.sleep(LOOK_EVERY_S)
        return False

    def _left(self) -> bool:
        return self._link.leave_requested and (self._link.fenced is not None or not self._link.is_member)

    def _work(self) -> None:
        if self._hanging:
            threading.Event().wait()
        if self._arguments.busy:
            # CPU time, not time: a fixed amount of work, which takes longer on a crowded machine.
            end = time.thread_time() + self._arguments.step_s
            while time.thread_time() < end:
                pass
        else:
            time.sleep(self._arguments.step_s)
        if self._step == self._arguments.fail_at:
            raise RuntimeError(f"told to fail at step {self._step}")

    def _adopted(self, view: View) -> None:
        self._events.emit(events.View.of(view), self._link.incarnation)
        if self._trace is not None:
            entry = {
                "at_ns": time.monotonic_ns(),
                "view": view.number,
                "members": [member.replica for member in view.members],
                "lives": [member.incarnation for member in view.members],
                "cause": view.cause,
                "pid": os.getpid(),
            }
            self._trace.write(json.dumps(entry) + "\n")

    def _say(self, what: str) -> None:
        print(what, flush=True)


def main() -> int:
    arguments = argparse.ArgumentParser(prog="standin", description=__doc__)
    arguments.add_argument("--steps", type=int, default=200)
    arguments.add_argument("--step-s", type=float, default=0.02, help="how long the work of a step takes")
    arguments.add_argument("--busy", action="store_true", help="burn CPU instead of sleeping")
    arguments.add_argument("--talk", type=int, default=0, metavar="K", help="print every K steps")
    arguments.add_argument("--fail-at", type=int, default=-1, metavar="STEP", help="raise at this step")
    arguments.add_argument("--trace", type=Path, metavar="DIR", help="write adopted views there")
    StandIn(arguments.parse_args()).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
