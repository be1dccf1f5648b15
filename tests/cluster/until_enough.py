"""A stand-in replica that works until a file called `enough` appears in the run directory.

Tests decide when a job has had its share of trouble; a number of steps would make that a race.
"""

import argparse
from pathlib import Path

from outlast.protocol.views import View
from outlast.testing.standin import StandIn
from outlast.wire.handover import handover


class Arguments(argparse.Namespace):
    enough: Path

    @property
    def steps(self) -> int:
        return 0 if self.enough.exists() else 1 << 40


class Attentive(StandIn):
    """A stand-in that looks at its view even when it is alone and has nobody to wait for."""

    def _wait_for_all(self, view: View, round_: int) -> bool:
        return self._link.view is view and super()._wait_for_all(view, round_)


def main() -> None:
    hand = handover()
    assert hand is not None
    traces = hand.run / "traces"
    traces.mkdir(exist_ok=True)
    enough = hand.run / "enough"
    Attentive(Arguments(enough=enough, step_s=0.005, busy=False, talk=0, fail_at=-1, trace=traces)).run()
    print("it was enough", flush=True)


if __name__ == "__main__":
    main()
