"""What a stopped agent cannot tell is read from the kernel's books, and only about its own children."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from outlast.run.untold import untold_exits
from outlast.wire.progress import ProgressReader


def page_of(home: Path, replica: int, pid: int) -> None:
    reader = ProgressReader.create(home / f"replica-{replica}.page")
    reader.born(pid)
    reader.close()


def test_exits_that_nobody_has_read_are_told_with_code_or_signal(tmp_path: Path) -> None:
    children = [os.posix_spawn("/bin/sh", ["sh", "-c", line], os.environ) for line in ("exit 0", "exit 3")]
    sleeper = os.posix_spawn("/bin/sleep", ["sleep", "1000"], os.environ)
    killed = os.posix_spawn("/bin/sleep", ["sleep", "1000"], os.environ)
    os.kill(killed, signal.SIGKILL)
    try:
        for pid in (*children, killed):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        for replica, pid in enumerate((*children, killed, sleeper, 0, os.getpid())):
            page_of(tmp_path, replica, pid)
        (tmp_path / "replica-9.page").write_bytes(b"no page")
        assert untold_exits(tmp_path, os.getpid()) == ["--ended", "0:0,1:3,2:-9"]
        assert untold_exits(tmp_path, os.getppid()) == [], "they are not its children"
    finally:
        os.kill(sleeper, signal.SIGKILL)
        for pid in (*children, killed, sleeper):
            os.waitpid(pid, 0)
    assert untold_exits(tmp_path, os.getpid()) == []
