"""A machine that is busy, or has another idea of the time, or a slow disk: as a job's processes see it.

Busy loops are real. The machine's own clock and disks are left alone: processes of the job are started with a
module (`twisted/sitecustomize.py`) that asks small files for the time of day and for the price of an fsync.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

TWISTED = Path(__file__).with_name("twisted")
FSYNC_S = 0.3
_SPIN = """
import os
os.set_blocking(0, False)
while True:
    try:
        if not os.read(0, 1):
            break
    except BlockingIOError:
        pass
"""


class Twist:
    """What is to be changed, in a folder that all processes of a job look into."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)

    def environment(self, given: Mapping[str, str] = os.environ) -> dict[str, str]:
        path = [str(TWISTED), *filter(None, [given.get("PYTHONPATH")])]
        return {"PYTHONPATH": os.pathsep.join(path), "OUTLAST_TORTURE_TWIST": str(self._folder)}

    def jump(self, seconds: int) -> None:
        """All clocks that tell the time of day are wrong by so much from now on."""
        self._write("clock", seconds)

    def slow(self, what: str) -> None:
        """Each fsync takes a while, of "store" (the coordinator) or "vault" (everybody else)."""
        self._write(f"slow-{what}", FSYNC_S)

    def quick(self, what: str) -> None:
        (self._folder / f"slow-{what}").unlink(missing_ok=True)

    def _write(self, name: str, value: float) -> None:
        fresh = self._folder / "fresh"
        fresh.write_text(str(value))
        fresh.replace(self._folder / name)


class BusyLoops:
    """So many processes that do nothing, as fast as they can, and that end with us."""

    def __init__(self, count: int) -> None:
        # They read the pipe's end when we are gone, by whatever death.
        command = [sys.executable, "-S", "-c", _SPIN]
        self._loops = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(count)]

    def end(self) -> None:
        for loop in self._loops:
            with contextlib.suppress(OSError):
                loop.kill()
            loop.wait()
            if loop.stdin is not None:
                loop.stdin.close()
