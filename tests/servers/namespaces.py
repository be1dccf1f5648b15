"""Network namespaces that leave nothing behind.

A namespace has no name and is not to be found under /run/netns. It lives as long as its *holder*, a process
that waits for the end of its standard input, which only we can write to. So it ends with us, even by
kill -9, and the holder takes everything with it that still runs in the namespace, whoever started it.

Whoever may not make namespaces as the user that they are makes a user namespace first, in which they may.
"""

import contextlib
import ctypes
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence

from patience import PATIENCE_S

_SYSTEM_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
"""Debian keeps these programs where only root looks."""
_PROGRAMS = ("ip", "iptables-restore", "ip6tables-restore", "unshare", "nsenter")
_OWN_USERS = ("--user", "--map-root-user")
_CLONE_NEWNET = 0x40000000

# All that tests ask of the kernel, in a namespace that is gone when the shell ends.
_TRY = """
set -e
ip link add bridge type bridge
ip link add one type veth peer name other
for restore in iptables-restore ip6tables-restore; do
  $restore <<END
*filter
-A INPUT -m statistic --mode random --probability 0.5 -j DROP
COMMIT
*nat
-A OUTPUT -p tcp --syn -m mark ! --mark 7 -j REDIRECT --to-ports 1
COMMIT
END
done
"""

# It must be sure that the namespace is its own before it may kill whoever is there; and it spares its parent,
# which may have entered and outlives it.
_HOLD = """
import os, signal, socket, sys, time
def space(pid):
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:
        return 0
own = space("self")
assert own and own not in (space(os.getppid()), space(1))
socket.sethostname(sys.argv[1])
print(flush=True)
sys.stdin.read()
spared = {str(os.getpid()), str(os.getppid())}
while left := {pid for pid in os.listdir("/proc") if pid.isdigit() and space(pid) == own} - spared:
    for pid in left:
        try:
            os.kill(int(pid), signal.SIGKILL)
        except OSError:
            pass
    time.sleep(0.01)
"""


@functools.cache
def missing() -> str | None:
    """Why there can be no namespaces here; None if there can."""
    for program in _PROGRAMS:
        if shutil.which(program, path=_SYSTEM_PATH) is None:
            return f"no {program}: run scripts/system-deps --for-tests"
    said = _why_not()
    if said and _why_not(*_OWN_USERS):
        return f"no network namespaces, neither as this user nor in a user namespace: {said}"
    return None


def cannot_enter() -> str | None:
    """Why this process cannot enter namespaces, though others may run there; None if it can."""
    if missing() is None and needs_own_users():
        return (
            "only root can enter a namespace: unshare --user --map-root-user makes you that, for one command"
        )
    return missing()


@functools.cache
def needs_own_users() -> bool:
    """Whether namespaces can only be had within a user namespace."""
    return bool(_why_not())


@functools.cache
def _why_not(*options: str) -> str:
    command = ["unshare", *options, "--net", "--uts", "sh", "-c", _TRY]
    tried = subprocess.run(command, capture_output=True, text=True, env=_environment(), check=False)
    return "" if tried.returncode == 0 else tried.stderr.strip() or f"unshare ended with {tried.returncode}"


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": _SYSTEM_PATH}


class CommandFailed(Exception):
    pass


class Namespace:
    def __init__(self, host: str, within: "Namespace | None" = None) -> None:
        """`host` is its host name. One `within` another has the same users, and can be joined to it."""
        users = _OWN_USERS if within is None and needs_own_users() else ()
        hold = ["unshare", *users, "--net", "--uts", sys.executable, "-I", "-S", "-c", _HOLD, host]
        self._holder = subprocess.Popen(
            within.command(hold) if within else hold,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(),
            # Ctrl-C is for those who test, who then end this.
            start_new_session=True,
        )
        assert self._holder.stdout is not None
        with self._holder.stdout as says:
            if not says.readline():
                raise CommandFailed(f"no namespace for {host}: its holder ended with {self._holder.wait()}")
        self._inode = os.stat(self._path).st_ino

    @property
    def holder(self) -> int:
        return self._holder.pid

    @property
    def _path(self) -> str:
        return f"/proc/{self.holder}/ns/net"

    def command(self, command: Sequence[str]) -> list[str]:
        """What runs this command in the namespace."""
        users = ("--user", "--preserve-credentials") if needs_own_users() else ()
        return ["nsenter", f"--target={self.holder}", *users, "--net", "--uts", *command]

    def run(self, *command: str, given: str = "") -> str:
        """Run it to its end, and return what it says."""
        return self.begin(*command, given=given)()

    def begin(self, *command: str, given: str = "") -> Callable[[], str]:
        """Like `run`, but its end is waited for by whoever calls what this returns."""
        with tempfile.TemporaryFile("w+") as file:
            file.write(given)
            file.seek(0)
            process = subprocess.Popen(
                self.command(command),
                stdin=file,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=_environment(),
            )

        def end() -> str:
            with process:
                said, complained = process.communicate(timeout=PATIENCE_S)
            if process.returncode:
                raise CommandFailed(f"{' '.join(command)}: {process.returncode}, {complained}{given}")
            return said

        return end

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """This thread is in the namespace meanwhile: so are the sockets that it makes and the processes and
        threads that it starts. Other threads are not."""
        assert cannot_enter() is None, cannot_enter()
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            there = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _set_namespace(there)
            finally:
                os.close(there)
            try:
                yield
            finally:
                _set_namespace(home)
        finally:
            os.close(home)

    def pids(self) -> list[int]:
        """Of all processes that are in it, but for its holder and for us, should we have entered."""
        ours = (os.getpid(), self.holder)
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        return [pid for pid in pids if pid not in ours and _inode_of(pid) == self._inode]

    def kill_all(self) -> None:
        """Returns when nothing runs in it any more."""
        deadline = time.monotonic() + PATIENCE_S
        while pids := self.pids():
            assert time.monotonic() < deadline, f"{pids} do not die"
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)

    def close(self) -> None:
        """Twice is fine."""
        if self._holder.poll() is None:
            self.kill_all()
        assert self._holder.stdin is not None
        self._holder.stdin.close()
        self._holder.wait(PATIENCE_S)


def _inode_of(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:
        return 0


def _set_namespace(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"setns: {os.strerror(code)}")
