"""What a run has to come to: each loss, and the digest after each step, of one process left in peace."""

import functools
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

SCRIPT = str(Path(__file__).with_name("torture_job.py"))
LONGEST = 400
"""No schedule has more steps; a shorter run is the beginning of this one."""


@dataclass(frozen=True)
class Quiet:
    losses: dict[int, str]
    digests: dict[int, str]


@functools.cache
def quiet_run(shards: int, norm: bool) -> Quiet:
    with tempfile.TemporaryDirectory(prefix="outlast-quiet-") as folder:
        command = [sys.executable, SCRIPT, "--steps", str(LONGEST), "--shards", str(shards)]
        command += ["--traces", folder, "--each-digest", *(["--norm"] if norm else [])]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        (trace,) = Path(folder).glob("*.trace")
        rows = [line.split() for line in trace.read_text().splitlines()]
    found = Quiet(
        losses={int(row[1]): row[2] for row in rows if row[0] == "loss"},
        digests={int(row[1]): row[2] for row in rows if row[0] == "digest"},
    )
    assert sorted(found.losses) == sorted(found.digests) == list(range(1, LONGEST + 1))
    return found
