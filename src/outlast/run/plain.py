"""Lines only, for logs and pipes: replicas' output where it belongs, our own on standard error.

How things stand is said at the beginning, when it changes, and now and then.
"""

import sys
import time
from collections.abc import Callable

from outlast.run.printer import Printer
from outlast.run.scene import STOPPING, Scene

PROGRESS_EVERY_S = 10.0


class PlainDisplay:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._printer = Printer(lambda note: print(note, file=sys.stderr, flush=True))
        self._clock = clock
        self._stage = ""
        self._told_at = float("-inf")

    def open(self) -> None:
        pass

    def line(self, stream: str, text: str) -> None:
        target = sys.stdout if stream == "stdout" else sys.stderr
        self._printer.put(lambda: print(text, file=target, flush=True))

    def say(self, text: str) -> None:
        self.line("stderr", f"outlast: {text}")

    def show(self, scene: Scene) -> None:
        if scene.stage != self._stage:
            self._stage = scene.stage
            if not scene.trains and scene.stage != STOPPING:
                self.say(scene.stage)
        if scene.trains and scene.step_s and self._clock() - self._told_at >= PROGRESS_EVERY_S:
            self._told_at = self._clock()
            self.say(progress(scene))

    def close(self) -> bool:
        return self._printer.close()


def progress(scene: Scene) -> str:
    """How far it is, in one line."""
    percent = f" ({100 * min(scene.step, scene.total) // scene.total}%)" if scene.total else ""
    return ", ".join([f"{scene.steps()}{percent}", *scene.progress(), scene.members()])
