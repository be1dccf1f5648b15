"""Four replicas, and three accidents: what `make demo` shows.

A stand-in plays the training script. One replica is killed with -9, another is stopped, and then the
coordinator itself is killed; the views below tell who takes part. The job finishes all the same.
"""

import os
import signal
import sys

from outlast.protocol.messages import Status
from outlast.testing.cluster import LocalCluster

EVERYBODY = {0, 1, 2, 3}
STAND_IN = ["-m", "outlast.testing.standin", "--steps", "400", "--talk", "100"]


def tell(what: str) -> None:
    print(f"\ndemo: {what}", flush=True)


def main() -> int:
    tell("four replicas start")
    with LocalCluster(4, STAND_IN, options=["--plain"], show=True) as job:
        job.wait_for_members(EVERYBODY)
        job.wait_for("some steps", lambda status: at_step(status, 50))

        tell("replica 2 is killed with SIGKILL")
        job.kill(2)
        job.wait_for_life(2, 2)

        tell("replica 1 is stopped with SIGSTOP, and woken later")
        pid = job.kill(1, signal.SIGSTOP)
        job.wait_for_members(EVERYBODY - {1})
        os.kill(pid, signal.SIGCONT)
        job.wait_for_life(1, 2)

        tell("the coordinator is killed with SIGKILL; nobody notices")
        killed = job.coordinator_pid()
        os.kill(killed, signal.SIGKILL)
        job.wait_for("another coordinator", lambda _: job.coordinator_pid() != killed)

        tell("the job runs to its end")
        code = job.wait()
    tell(f"exit code {code}: " + ("the job outlasted all of it" if code == 0 else "something went wrong"))
    return code


def at_step(status: Status, step: int) -> bool:
    return bool(status.pulses) and all(pulse.step >= step for pulse in status.pulses)


if __name__ == "__main__":
    sys.exit(main())
