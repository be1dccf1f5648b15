"""Processes that are killed, stopped and woken, each by a descriptor: a number may become somebody else's."""

import contextlib
import os
import signal


class Victim:
    """One process, whatever becomes of its number."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)

    def close(self) -> None:
        os.close(self._descriptor)


def kill(pid: int) -> None:
    victim = Victim(pid)
    victim.send(signal.SIGKILL)
    victim.close()


def stop(pid: int) -> Victim:
    """Stopped, until somebody wakes what is returned."""
    victim = Victim(pid)
    victim.send(signal.SIGSTOP)
    return victim


def wake(victim: Victim) -> None:
    victim.send(signal.SIGCONT)
    victim.close()
