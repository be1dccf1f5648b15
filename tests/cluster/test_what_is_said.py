"""What replicas print: prefixed, kept apart, and all of it in the logs."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from outlast.testing.cluster import LocalCluster
from patience import PATIENCE_S

Script = Any

NEVER_JOINED = 4
"""The exit code of a job whose script trains nothing."""


def test_each_line_says_whose_it_is(script: Script) -> None:
    talks = script("""
        import os, sys
        me = os.environ["OUTLAST_REPLICA"]
        print("hi from", me, flush=True)
        print("trouble at", me, file=sys.stderr)
        print("no newline", end="")
    """)
    with LocalCluster(11, [talks]) as cluster:
        assert cluster.wait() == NEVER_JOINED
        out, err = cluster.said("stdout").splitlines(), cluster.said("stderr").splitlines()
        everyone = [(f"[{n:>2}]", n) for n in range(11)]
        assert sorted(out) == sorted(
            line for prefix, n in everyone for line in (f"{prefix} hi from {n}", f"{prefix} no newline")
        )
        assert sorted(line for line in err if line.startswith("[")) == [
            f"{prefix} trouble at {n}" for prefix, n in everyone
        ]
        for n in range(11):
            logged = cluster.directory.log(n).read_text().splitlines()
            assert sorted(logged) == [f"hi from {n}", "no newline", f"trouble at {n}"]


def test_a_flood_of_lines_disturbs_nobody(script: Script) -> None:
    floods = script("""
        import os, runpy, sys
        flood = 50_000 if os.environ["OUTLAST_REPLICA"] == "0" else 0
        for number in range(flood):
            print("line", number)
        sys.argv = ["standin", "--steps", "20"]
        try:
            runpy.run_module("outlast.testing.standin", run_name="__main__")
        finally:
            for number in range(flood // 10):
                print("last words", number)
    """)
    with LocalCluster(2, [floods]) as cluster:
        assert cluster.wait() == 0
        log = cluster.directory.log(0).read_text().splitlines()
        assert log[:50_000] == [f"line {number}" for number in range(50_000)]
        out, err = cluster.said("stdout"), cluster.said("stderr")
        # Whatever the terminal could not take is counted: shown and left out are all there is.
        shown = sum(line.startswith("[") for line in out.splitlines())
        left_out = sum(int(count) for count in re.findall(r"… (\d+) lines are left out here", out + err))
        printed = sum(len(cluster.directory.log(n).read_text().splitlines()) for n in (0, 1))
        assert printed <= shown + left_out <= printed + 10
        assert "outlast: 2 of 2 replicas have joined" in err or left_out
        assert "view 1: members 0,1 (the first view)\n" in cluster.views()
        assert "was killed" not in err


def test_replicas_start_from_a_process_that_has_torch_already(script: Script) -> None:
    uses_torch = script("""
        import sys
        print("torch" in sys.modules)
        import torch
        print(float(torch.ones(3).sum()), torch.get_num_threads())
        with open("/proc/self/cmdline") as line:
            print(line.read().replace(chr(0), " "))
    """)
    with LocalCluster(2, [uses_torch]) as cluster:
        assert cluster.wait() == NEVER_JOINED
        for n in (0, 1):
            preloaded, result, command = cluster.directory.log(n).read_text().splitlines()
            assert preloaded == "True"
            assert result == "3.0 1"
            assert "outlast.agent.forkserver" in command


def test_a_terminal_that_stands_still_stops_nobody(tmp_path: Path) -> None:
    """Nobody reads the launcher's output, and the pipe fills up."""
    script = tmp_path / "script.py"
    script.write_text("for _ in range(20_000):\n    print('x' * 100)\nopen('done', 'w').close()\n")
    with subprocess.Popen(
        [sys.executable, "-m", "outlast", "run", str(script)],
        env={**os.environ, "OUTLAST_HOME": str(tmp_path / "home")},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.wait(PATIENCE_S) == NEVER_JOINED
        assert (tmp_path / "done").exists()
