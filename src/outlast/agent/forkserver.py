"""A process that has imported torch already, and from which replicas are forked.

A replica that died should be back at once, but `import torch` takes two seconds. So each agent keeps one
process that has done the imports and nothing else, and every replica starts as a fork of it. Four things
make that as good as `python script.py`, and a test holds each of them:

- **Forking is safe only without threads**: a lock held by a thread that does not exist in the child is held
  for ever. After the imports, this process counts its threads. If an import failed or left a thread, it
  starts itself anew without preloading, and says why: replicas then import for themselves.
- **The agent is the parent.** The replica is forked twice, and the process in the middle ends, so the kernel
  gives the replica to the nearest subreaper: the agent. The agent reads the exit status itself, and the
  death of this process means nothing to a running replica.
- **Nothing shines through.** The replica closes what it inherited, takes its own session, environment,
  directory, signals and random numbers, and then returns out of the serving loop to *become* the script:
  a fresh `__main__`, run at the bottom of the stack, so that exit hooks, threads, exit status and traceback
  are those of an ordinary program. What a fork cannot give (a variable that Python, the loader or a thread
  library reads only once, at its start) is left to a new interpreter: correct first, fast second.
- **No one is left behind.** When the agent's end of the control socket closes, the agent is dead. Its
  replicas die by the kernel's hand; this process then kills what *they* had started, and ends. Should it be
  stopped in that moment, the kernel wakes it.

The agent talks to it with length-prefixed msgpack over a Unix socket; file descriptors travel beside. One of
them is a pipe by which the agent itself lets the replica go, once it knows its pid: so no script ever runs in
a process that the agent does not know, wherever this process or the agent may die in between.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

from outlast import kinship
from outlast.agent.program import Program, become
from outlast.agent.spawning import (
    MESSAGE_MAX_BYTES,
    Forget,
    Guard,
    Ready,
    Reply,
    Request,
    Spawn,
    Spawned,
    SpawnFailed,
    decode_request,
    frame,
    opened,
    unborn_name,
)

REPARENT_WITHIN_S = 10.0
PREPARE_WITHIN_S = 30.0

# Read once when an interpreter, the loader, the allocator or a thread library starts: a replica that wants
# another value of one of these than this process was started with needs an interpreter of its own.
_BY_THE_PROCESS = ("PYTHON", "LD_", "LANG", "LC_", "GLIBC_TUNABLES", "MALLOC_")
_BY_LIBRARIES = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "NPY_", "TORCH_", "PYTORCH_")
READ_AT_START = _BY_THE_PROCESS + _BY_LIBRARIES


class _Forkserver:
    def __init__(self, control: socket.socket, agent_pid: int) -> None:
        self._control = control
        self._agent_pid = agent_pid
        self._environment = dict(os.environ)
        self._nursery = self._environment.get(kinship.KIN, "").partition("/")[0]
        self._guarded: set[int] = set()

    def serve(self, ready: Ready) -> Program:
        """Serve until the agent is gone. This returns in replicas only, with what they are to become."""
        try:
            self._send(ready)
            while True:
                request, descriptors = self._receive()
                match request:
                    case Spawn():
                        program = self._spawn(request, descriptors)
                        if program is not None:
                            return program
                        for fd in descriptors:
                            os.close(fd)
                    case Guard(pids=pids):
                        self._guarded.update(pids)
                    case Forget(pid=pid):
                        self._guarded.discard(pid)
        except (EOFError, ConnectionError):
            self._bury()

    def _send(self, reply: Reply) -> None:
        self._control.sendall(frame(reply))

    def _receive(self) -> tuple[Request, list[int]]:
        head, descriptors = self._receive_exactly(4)
        size = int.from_bytes(head, "big")
        if size > MESSAGE_MAX_BYTES:
            raise EOFError(f"a message of {size} bytes")
        body, more = self._receive_exactly(size)
        return decode_request(body), descriptors + more

    def _receive_exactly(self, size: int) -> tuple[bytes, list[int]]:
        data = b""
        descriptors: list[int] = []
        while len(data) < size:
            chunk, fds, _flags, _address = socket.recv_fds(
                self._control, size - len(data), 3, socket.MSG_CMSG_CLOEXEC
            )
            descriptors += fds
            if not chunk:
                raise EOFError
            data += chunk
        return data, descriptors

    def _bury(self) -> NoReturn:
        """The agent is dead: kill the groups of its replicas, then whatever still carries the mark."""
        for pid in self._guarded:
            kinship.kill_group(pid)
        if self._nursery:
            kinship.bury(self._nursery)
        os._exit(0)

    def _spawn(self, request: Spawn, descriptors: list[int]) -> Program | None:
        cold = self._reason_for_interpreter(request)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            middle = os.fork()
        except OSError as error:
            ours.close()
            theirs.close()
            self._send(SpawnFailed(request.process, f"fork: {error.strerror}"))
            return None
        if middle == 0:
            try:
                self._fork_again_and_end(theirs)
                ours.detach()
                self._control.detach()
                return self._prepare(request, descriptors, theirs, bool(cold))
            except BaseException:
                # Nothing may travel up into the serving loop: there must be one forkserver only.
                sys.excepthook(*sys.exc_info())
                os._exit(1)
        theirs.close()
        os.waitpid(middle, 0)
        with ours:
            self._send(self._hear_from(ours, request, cold))
        return None

    def _hear_from(self, ours: socket.socket, request: Spawn, cold: str) -> Reply:
        ours.settimeout(PREPARE_WITHIN_S)
        pid = None
        try:
            born = ours.recv(4096).decode()
            if not born.isdigit():
                return SpawnFailed(request.process, born or "it died in the fork")
            pid = int(born)
            self._guarded.add(pid)
            complaint = ours.recv(4096).decode()
        except TimeoutError:
            complaint = f"it was not ready within {PREPARE_WITHIN_S:.0f} s"
        except OSError as error:
            complaint = f"it was lost while getting ready: {error.strerror}"
        if complaint != "ready":
            return SpawnFailed(request.process, complaint or "it died while getting ready", pid)
        assert pid is not None
        return Spawned(request.process, pid, cold)

    def _fork_again_and_end(self, theirs: socket.socket) -> None:
        try:
            replica = os.fork()
            message = str(replica)
        except OSError as error:
            replica, message = -1, f"fork: {error.strerror}"
        if replica != 0:
            theirs.send(message.encode())
            os._exit(0)

    def _reason_for_interpreter(self, request: Spawn) -> str:
        ours, theirs = self._environment, opened(request.environment)
        for name in sorted(ours.keys() | theirs.keys()):
            if name.startswith(READ_AT_START) and ours.get(name) != theirs.get(name):
                return f"{name} differs from what the forkserver was started with"
        first = request.argv[0]
        source = first.endswith(".py") and os.path.isfile(os.path.join(request.cwd, first))
        # A directory, an archive, or nothing at all: the interpreter knows what to do or what to say.
        return "" if first == "-m" or source else f"{first!r} is not a file of Python source"

    def _prepare(self, request: Spawn, descriptors: list[int], theirs: socket.socket, cold: bool) -> Program:
        """Turn a fork into a process of its own; return only when the agent knows of it and lets it go."""
        stdout, stderr, go = descriptors
        try:
            kinship.set_name(unborn_name(self._nursery))
            os.setsid()
            self._await_the_agent()
            kinship.die_with_parent(self._agent_pid)
            kinship.take_descriptors(stdout, stderr, keep=(theirs.fileno(), go))
            kinship.restore_signals()
            os.environ.clear()
            os.environ.update(opened(request.environment))
            time.tzset()
            os.chdir(request.cwd)
            os.nice(request.nice)
        except OSError as error:
            where = f" {error.filename!r}" if error.filename else ""
            theirs.send(f"{error.strerror}{where}".encode()[:4096])
            os._exit(1)
        theirs.send(b"ready")
        theirs.close()
        if not os.read(go, 1):
            os._exit(kinship.ORPHANED)
        os.close(go)
        if cold:
            # Unbuffered, since output that is seen at once is worth more than a few system calls.
            command = [sys.executable, "-u", *request.argv]
            os.execve(sys.executable, command, os.environ)  # noqa: S606 (no shell is wanted)
        kinship.set_name(f"replica-{request.replica}")
        return Program(request.argv, request.cwd)

    def _await_the_agent(self) -> None:
        deadline = time.monotonic() + REPARENT_WITHIN_S
        while os.getppid() != self._agent_pid:
            if time.monotonic() > deadline:
                os._exit(kinship.ORPHANED)
            time.sleep(0.0002)


def _preload(modules: Sequence[str]) -> str:
    """Import the modules; the reason why this process must not be forked from, or nothing."""
    environment = dict(os.environ)
    # OpenBLAS starts its threads when it is loaded. Torch's own start with the first parallel operation.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    try:
        for name in modules:
            try:
                importlib.import_module(name)
            except BaseException as error:
                return f"{name} could not be imported: {type(error).__name__}: {error}"
    finally:
        os.environ.clear()
        os.environ.update(environment)
    threads = len(os.listdir("/proc/self/task")) - 1
    if threads > 0:
        plural = "s" if threads > 1 else ""
        return f"importing {', '.join(modules)} left {threads} thread{plural} running, so forking is not safe"
    return ""


def _ready(control_fd: int, agent_pid: int, modules: list[str], cold: str) -> Ready:
    started = time.monotonic()
    reason = _preload(modules)
    if reason:
        os.set_inheritable(control_fd, True)
        again = ["-m", "outlast.agent.forkserver", str(control_fd), "--agent-pid", str(agent_pid)]
        os.execv(sys.executable, [sys.executable, *again, "--cold", reason])  # noqa: S606 (as above)
    gc.collect()
    # Out of reach of the collector, these objects' pages stay shared between all replicas.
    gc.freeze()
    return Ready(modules, time.monotonic() - started, cold)


def main() -> None:
    parser = argparse.ArgumentParser(prog="outlast.agent.forkserver", description="Started by the agent.")
    parser.add_argument("control_fd", type=int)
    parser.add_argument("--agent-pid", type=int, required=True)
    parser.add_argument("--preload", nargs="*", default=[])
    parser.add_argument("--cold", default="")
    options = parser.parse_args()
    # It ends when the agent does, and not before: a signal to everybody must not take the undertaker first.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    kinship.wake_with_parents_death()
    if not sys.flags.safe_path:
        # The place of the script's folder, which is not known yet.
        del sys.path[0]
    os.set_inheritable(options.control_fd, False)
    ready = _ready(options.control_fd, options.agent_pid, options.preload, options.cold)
    control = socket.socket(fileno=options.control_fd)
    become(_Forkserver(control, options.agent_pid).serve(ready))


if __name__ == "__main__":
    main()
