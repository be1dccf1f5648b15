"""Loaded by every Python process of a job whose clock or disk is to be twisted; see `machine.py`.

It changes `time.time` and `os.fsync`, and nothing else: clocks that only go forward are out of reach of
whoever sets the time of a machine, too.
"""

import os
import sys
import time


def _twist(folder: str) -> None:
    real_time, real_time_ns, real_fsync = time.time, time.time_ns, os.fsync
    disk = "store" if "outlast.coordinator" in sys.orig_argv else "vault"

    def told(name: str) -> float:
        try:
            with open(os.path.join(folder, name)) as file:
                return float(file.read())
        except OSError:
            return 0.0

    def fsync(file: int) -> None:
        time.sleep(told(f"slow-{disk}"))
        real_fsync(file)

    time.time = lambda: real_time() + told("clock")
    time.time_ns = lambda: real_time_ns() + int(told("clock") * 1e9)
    os.fsync = fsync


if "OUTLAST_TORTURE_TWIST" in os.environ:
    _twist(os.environ["OUTLAST_TORTURE_TWIST"])
