"""Who is whose parent, and who dies with whom.

An agent promises that nothing it started outlives it, even when it is killed with -9 and runs no more code.
No bookkeeping can keep that promise, so it is given to the kernel, in three parts:

- **Death signal.** A replica asks to be killed the moment its parent dies (`die_with_parent`). The request
  is void when the parent is dead already, so the parent is checked once more after asking.
- **Adoption.** The agent is a *subreaper*: when a process below it dies, the children of that process become
  the agent's own, so that losing its parent does not put a process out of sight.
- **A mark.** A process that called `setsid` left its replica's process group, and no longer tells where it
  came from. Hence every replica carries `KIN=<nursery>/<process>` in its environment, which its descendants
  inherit through fork and exec, and which `/proc` shows to us.

Beside that, what a child must shed of its inheritance (descriptors, signals), how it ended, and the few facts
that the agent reads from `/proc` about it: is it stopped, and how long was it kept from running by others.
They are plain reads of a few bytes, cheap enough for ten times a second. And how nice it is: a replica that
starts beside others that train gives way to them until it takes part.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

KIN = "OUTLAST_KIN"

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

# The status of a process that ends because its parent is gone; nobody is left to read it but a log.
ORPHANED = 113


def _prctl(option: int, argument: int | bytes) -> None:
    # ctypes is imported here, since most users of this module only read /proc.
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    value = ctypes.c_char_p(argument) if isinstance(argument, bytes) else ctypes.c_ulong(argument)
    if libc.prctl(option, value, ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")


def die_with_parent(expected_parent_pid: int) -> None:
    """Be killed when the parent dies; end at once when it has died already."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != expected_parent_pid:
        os._exit(ORPHANED)


def become_subreaper(adopt: bool = True) -> None:
    """Become the parent of every descendant that loses its own (or, with False, no longer)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(adopt))


def wake_with_parents_death() -> None:
    """Be woken when the parent dies: one that is stopped could not see to what the parent left behind."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def set_name(name: str) -> None:
    """Set the name that `top` and `ps` show for this process; the kernel keeps 15 bytes of it."""
    _prctl(_PR_SET_NAME, name.encode()[:15])


def children_of(pid: int) -> list[int]:
    """The children of all threads of a process, zombies included; none when the process is gone."""
    children: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return children
    for thread in threads:
        children += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    return children


class Stat(NamedTuple):
    """What /proc/<pid>/stat says of one process."""

    name: str
    state: str
    parent: int
    group: int
    session: int
    started_ticks: int
    """When it was started, in ticks since the machine was: with its number, it names one process for good."""
    wait_status: int
    """What its parent will read, once it is a zombie."""

    @property
    def zombie(self) -> bool:
        return self.state in "ZX"


def stat(pid: int) -> Stat | None:
    """None when there is no such process, not even as a zombie."""
    text = _read(f"/proc/{pid}/stat").decode(errors="replace")
    # The name stands in brackets and may itself hold brackets and spaces, so the last one counts.
    head, found, tail = text.rpartition(")")
    if not found:
        return None
    fields = tail.split()
    state, parent, group, session = fields[:4]
    name = head.partition("(")[2]
    return Stat(name, state, int(parent), int(group), int(session), int(fields[19]), int(fields[49]))


def alive(pid: int) -> bool:
    """A zombie is not alive: it only waits for somebody to read its status."""
    found = stat(pid)
    return found is not None and not found.zombie


def stopped(pid: int) -> bool:
    """Stopped by a signal or by a debugger: it does not run, but it is not dead either."""
    found = stat(pid)
    return found is not None and found.state in "Tt"


def run_delay_s(pid: int) -> float | None:
    """How long its main thread was ready to run but got no CPU, since it started; None when unknown."""
    fields = _read(f"/proc/{pid}/task/{pid}/schedstat").split()
    return int(fields[1]) / 1e9 if len(fields) >= 2 else None


def kin_mark(pid: int) -> str | None:
    """The mark that a process inherited, as `<nursery>/<process>`; a zombie shows none."""
    key = f"{KIN}=".encode()
    for entry in _read(f"/proc/{pid}/environ").split(b"\0"):
        if entry.startswith(key):
            return entry[len(key) :].decode(errors="replace")
    return None


def all_marked(nursery: str) -> list[int]:
    """Every other living process on this machine that carries a mark of this nursery."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
    return [pid for pid in pids if (kin_mark(pid) or "").startswith(f"{nursery}/")]


def nursery_name(run: str, agent: str) -> str:
    """The same for every life of an agent, so that the next one knows what the last one left behind."""
    return hashlib.blake2b(f"{run}\0{agent}".encode(errors="surrogateescape"), digest_size=4).hexdigest()


def bury(nursery: str) -> None:
    """Kill whatever carries a mark of this nursery, and what that has started meanwhile."""
    # Bounded, since a process in uninterruptible sleep dies only when its disk answers.
    for _ in range(100):
        marked = all_marked(nursery)
        for pid in marked:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not marked:
            return
        time.sleep(0.01)


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a process ended: with an exit code, or by a signal."""

    code: int | None
    signal: int | None

    @classmethod
    def of(cls, returncode: int) -> ExitStatus:
        """From a number as `subprocess` has it, where a signal is negative."""
        return cls(returncode, None) if returncode >= 0 else cls(None, -returncode)

    @property
    def returncode(self) -> int:
        return -self.signal if self.signal is not None else self.code or 0

    @property
    def success(self) -> bool:
        return self.code == 0

    @property
    def own_fault(self) -> bool:
        """Whether the program brought it upon itself: an uncaught exception, or a crash in native code."""
        if self.signal is not None:
            return self.signal in _CRASHES
        return self.code != 0 and self.code not in _TOLD_TO_END

    def describe(self, *, asked: bool = False, why: str = "") -> str:
        """The end of a sentence that starts with "replica 3"; `asked` if we killed it ourselves, `why` if it
        is known from elsewhere."""
        if self.signal is None:
            return f"exited with status {self.code}"
        known = self.signal in set(signal.Signals)
        name = signal.Signals(self.signal).name if known else f"signal {self.signal}"
        hint = None if asked else why or _HINTS.get(self.signal)
        return f"was killed by {name}" + (f" ({hint})" if hint else "")


_CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT})
# What a handler or a shell makes of a signal that somebody sent.
_TOLD_TO_END = frozenset(128 + s for s in (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM))

_HINTS: dict[int, str] = {
    signal.SIGBUS: "shared memory or disk full?",
    signal.SIGSEGV: "a crash in native code",
    signal.SIGABRT: "a failed check in native code",
}


def exit_status(pidfd: int, *, reap: bool) -> ExitStatus | None:
    """How this child ended, None if it has not. Without `reap` it stays a zombie, and keeps its number."""
    options = os.WEXITED | os.WNOHANG | (0 if reap else os.WNOWAIT)
    result = os.waitid(os.P_PIDFD, pidfd, options)
    if result is None:
        return None
    if result.si_code == os.CLD_EXITED:
        return ExitStatus(result.si_status, None)
    return ExitStatus(None, result.si_status)


def unread_status(pid: int, parent: int) -> ExitStatus | None:
    """How a process ended that its parent has not read the status of; None if it is no such zombie."""
    found = stat(pid)
    if found is None or not found.zombie or found.parent != parent:
        return None
    return ExitStatus.of(os.waitstatus_to_exitcode(found.wait_status))


def reap(pid: int) -> None:
    """Take a dead child off the kernel's hands."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)


def kill_group(pid: int) -> None:
    """Kill all that is left of the process group that this replica led."""
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def take_descriptors(stdout: int, stderr: int, keep: Sequence[int]) -> None:
    """Make these standard output and error, /dev/null the input, and close all else but those to keep."""
    stdin = os.open(os.devnull, os.O_RDONLY)
    for wanted, fd in enumerate((stdin, stdout, stderr)):
        os.dup2(fd, wanted)
    lowest = 3
    for fd in sorted(keep):
        os.closerange(lowest, fd)
        lowest = fd + 1
    os.closerange(lowest, os.sysconf("SC_OPEN_MAX"))


def restore_signals() -> None:
    """Set all signals to what a fresh Python program has."""
    for number in signal.valid_signals():
        # None means a handler that was not set from Python, such as faulthandler's: the user asked for it.
        if signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # These two are ignored by every Python program from its start.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def can_unnice() -> bool:
    """Whether this process may take back being nice; most users may not."""
    worked = False

    def try_it() -> None:
        nonlocal worked
        # Niceness is the thread's own, so a thread that ends with it is the place to try. What capabilities
        # and limits say is not enough: they may be void in a container.
        with contextlib.suppress(OSError):
            before = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, 0, before + 1)
            os.setpriority(os.PRIO_PROCESS, 0, before)
            worked = before < _NICEST

    thread = threading.Thread(target=try_it, name="outlast-nice")
    thread.start()
    thread.join()
    return worked


def unnice() -> bool:
    """Be as nice as our parent again, the agent, with all threads; whether that worked. Called by a replica
    that its agent may have started nice."""
    try:
        wanted = os.getpriority(os.PRIO_PROCESS, os.getppid())
        # A thread that has not had its turn may start another one, which is as nice as itself; so look again.
        for _ in range(_UNNICE_ATTEMPTS):
            nicer = [thread for thread in _own_threads() if _niceness(thread) > wanted]
            if not nicer:
                return True
            for thread in nicer:
                with contextlib.suppress(ProcessLookupError):
                    os.setpriority(os.PRIO_PROCESS, thread, wanted)
    except OSError:
        pass
    return False


_NICEST = 19
_UNNICE_ATTEMPTS = 10


def _own_threads() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/task")]


def _niceness(thread: int) -> int:
    try:
        return os.getpriority(os.PRIO_PROCESS, thread)
    except ProcessLookupError:
        return -_NICEST - 1


def _read(path: str) -> bytes:
    # A process may vanish between any two looks at it, so whatever cannot be read reads as empty.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        chunks = []
        while chunk := os.read(fd, 1 << 16):
            chunks.append(chunk)
        return b"".join(chunks)
    except OSError:
        return b""
    finally:
        os.close(fd)
