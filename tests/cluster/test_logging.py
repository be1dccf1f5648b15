"""Curves that a script writes as the guide says: each step once, though chiefs are killed."""

import random
import struct
from collections import Counter
from pathlib import Path

import pytest

from outlast.testing.cluster import LocalCluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "logging_tensorboard.py"
STEPS = 150


def points(folder: Path) -> Counter[int]:
    """How often each step is in the event files, read to the last whole event."""
    from tensorboardX.proto.event_pb2 import Event

    found: Counter[int] = Counter()
    for file in folder.glob("events.*"):
        data, at = file.read_bytes(), 0
        while at + 12 <= len(data):
            (size,) = struct.unpack_from("<Q", data, at)
            event = (
                Event.FromString(data[at + 12 : at + 12 + size]) if at + 16 + size <= len(data) else Event()
            )
            found.update([event.step] * len(event.summary.value))
            at += 16 + size
    return found


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_every_step_is_on_the_curve_once_though_chiefs_are_killed(tmp_path: Path, seed: int) -> None:
    chance, curves = random.Random(seed), tmp_path / "curves"
    script = [str(EXAMPLE), "--curves", str(curves), "--steps", str(STEPS), "--pace", "0.02"]
    with LocalCluster(3, script) as cluster:
        reached = 0
        for chief in (0, 1):
            reached += chance.randint(10, 40)
            cluster.wait_until(f"step {reached}", lambda: max(cluster.steps().values(), default=0) >= reached)  # noqa: B023
            # The next one is chief from here on, until this one is back.
            cluster.kill(chief)
        assert cluster.wait() == 0, cluster.said()
        assert len(list(curves.glob("events.*"))) > 1, "nobody else has been chief"
    assert points(curves) == Counter(range(1, STEPS + 1)), sorted(curves.iterdir())
