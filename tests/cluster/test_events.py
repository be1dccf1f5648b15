"""A real run tells what happened to it, and keeps its promises."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from typing import Any

from outlast.observe.promises import check
from patience import PATIENCE_S


def told_by(home: str, *options: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "outlast", "events", *options],
        env={**os.environ, "OUTLAST_HOME": home},
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    ).stdout


def test_a_killed_replica_is_in_the_events_from_its_death_to_its_return(start_job: Any) -> None:
    with start_job(3) as job:
        job.wait_for_all()
        killed = job.kill(1)
        job.wait_for_life(1, 2)
        assert job.finish() == 0, job.said()
        lines = [json.loads(line) for line in told_by(str(job.home), "job", "--json").splitlines()]
        shown = told_by(str(job.home)).splitlines()
        assert check(job.directory.path) == []
        folder = job.directory.path / "events"
        modes = {stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}
    assert modes == {0o700, 0o600}

    def of(kind: str, source: str = "") -> list[dict[str, Any]]:
        found = (one for one in lines if one["source"].startswith(source))
        return [one["event"] for one in found if one["event"]["kind"] == kind]

    assert of("begun", "launcher")[0]["replicas"] == 3
    assert {one["who"] for one in of("started", "agent-0")} == {"replica-0", "replica-1", "replica-2"}
    (died,) = of("died", "agent-0")
    assert (died["who"], died["incarnation"], died["cause"]) == ("replica-1", 1, "was killed by SIGKILL")
    (again,) = of("restarted", "agent-0")
    assert (again["who"], again["cause"]) == ("replica-1", "was killed by SIGKILL")
    assert killed in {one["pid"] for one in of("started", "agent-0")}
    assert {(one["replica"], one["incarnation"]) for one in of("joined", "agent-0")} >= {(1, 1), (1, 2)}

    views = of("view", "coordinator")
    numbers = [view["number"] for view in views]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    (without,) = [view for view in views if "was killed by SIGKILL" in view["cause"]]
    assert [1, 1] not in without["members"]
    assert {(one["replica"], one["incarnation"]) for one in of("promoted", "coordinator")} == {(1, 2)}
    assert of("leading", "coordinator")
    assert of("life_over", "agent-0")
    assert [one["state"] for one in of("ended", "coordinator")] == ["finished"]
    assert [(one["state"], one["exit_code"]) for one in of("ended", "launcher")] == [("finished", 0)]

    adopted = [one for one in lines if one["source"] == "replica-1" and one["event"]["kind"] == "view"]
    assert {one["incarnation"] for one in adopted} == {1, 2}
    assert len({one["pid"] for one in adopted}) == 2

    assert len(shown) == len(lines)
    assert all(len(line) <= 100 for line in shown)
    assert any("replica-1 died: it was killed by SIGKILL" in line for line in shown)
