"""What `outlast run` itself says of a run: on the way and at its end, in a log and in a terminal."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from training_run import TrainingRun

from outlast.run import ended
from patience import PATIENCE_S

pytestmark = pytest.mark.timeout(300)


def test_a_run_tells_of_its_progress_its_faults_and_its_end() -> None:
    with TrainingRun(3, steps=200) as run:
        progress = re.compile(
            r"outlast: step \d+ of 200 \(\d+%\), loss [\d.e-]+, [\d.,]+ samples/s, .* left, "
            r"3 of 3 replicas training"
        )
        run.wait_until("progress", lambda: progress.search(run.said("stderr")) is not None)
        run.kill(1)
        run.wait_for_life(1, 2)
        run.wait_until("a word on that", lambda: "replica 1 is back after" in run.said("stderr"))
        run.finish()
        told = run.said("stderr").splitlines()
        ending = ended.read(run.directory)
    lost = [
        line for line in told if re.match(r"outlast: replica 1 was killed by SIGKILL .*at step \d+; ", line)
    ]
    assert len(lost) == 1
    assert lost[0].endswith("2 of 3 replicas go on")
    assert not any(re.search(r"view \d|learning|lineage", line) for line in told)
    verdict, faults, logs = told[-3:]
    assert re.fullmatch(r"outlast: finished: 200 steps in [\d.]+ \w+.*", verdict)
    assert re.fullmatch(
        r"outlast: survived 1 fault \(replica 1 killed at step \d+\), "
        r"which cost (about [\d.]+ s|less than half a second)",
        faults,
    )
    assert logs == "outlast: what the replicas printed: outlast logs job"
    assert ending is not None
    assert (ending.state, ending.exit_code, ending.step, ending.total) == ("finished", 0, 200, 200)
    assert [(fault.replica, fault.lasted_s is not None) for fault in ending.faults] == [(1, True)]


def test_a_picture_in_a_terminal(tmp_path: Path) -> None:
    """Of 80 columns. When the run is over, the picture is gone and the cursor is back."""
    terminal, ours = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "outlast", "run", "-n", "2", "--name", "job"]
    with subprocess.Popen(
        [*command, "-m", "outlast.testing.standin", "--steps", "1000000"],
        stdin=ours,
        stdout=ours,
        stderr=ours,
        env={**os.environ, "OUTLAST_HOME": str(tmp_path), "TERM": "xterm"},
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    ) as process:
        os.close(ours)
        try:
            seen = _read_until(terminal, b"2 of 2 replicas training")
            assert b"starting replicas" in seen
            os.write(terminal, b"\x03")
            seen = _read_until(terminal, b"\x1b[?25h")
            assert process.wait(PATIENCE_S) == 130
        finally:
            process.kill()
            os.close(terminal)
    assert b"stopped at step" in seen


def _read_until(terminal: int, wanted: bytes) -> bytes:
    seen, deadline = b"", time.monotonic() + PATIENCE_S
    while wanted not in seen:
        assert time.monotonic() < deadline, seen
        if select.select([terminal], [], [], 1.0)[0]:
            seen += os.read(terminal, 1 << 16)
    return seen
