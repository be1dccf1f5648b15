"""The replica's program of `bench screening`: one training, with and without screening in turns.

    outlast run -n 2 bench/screened.py '{"width": 1024, ...}'

All replicas switch at the same place, between two blocks of steps. There is no such switch for users: it is
made here, in the parts of the job that screen. Otherwise it is like `bench/duel.py`, whose model it trains.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import outlast

# A script has its own folder on its path, and not the one above.
sys.path.append(str(Path(__file__).parents[1]))
from bench.duel import Outlast, batch_of, block, meet, tell

WARM_UP_PAIRS = 2


class Switch:
    """Turns screening off and on again. Everybody has to do so before the same step."""

    def __init__(self, job: outlast.Job) -> None:
        self._job = job
        self._screening = job._parts.engine._exchange.screening

    def turn(self, *, on: bool) -> None:
        engine = self._job._parts.engine
        exchange = engine._exchange
        exchange.screening = self._screening if on else None
        exchange.plan.screened = exchange._layout.parameter_buckets if on else 0
        steps = engine.driver.steps
        # One is for the views to come, the other for the one in force.
        steps.judges = steps._attempts._judges = on


def main() -> None:
    plan = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    pairs = plan["pairs"] + WARM_UP_PAIRS
    ours = Outlast(plan["width"], batch_of(plan, 0), 2 * pairs * plan["steps"] + 1)
    with ours.job as job:
        ours.steps(1)
        directory = Path(plan["directory"])
        meet(directory, job.replica, plan["replicas"])
        switch = Switch(job)
        found = []
        for pair in range(pairs):
            times = {}
            for name in ("with", "without") if pair % 2 else ("without", "with"):
                switch.turn(on=name == "with")
                times[name] = block(ours.steps, plan["steps"])
            found.append(times)
        if job.replica == 0:
            tell(directory, job.replica, {"pairs": found[WARM_UP_PAIRS:]})
        ours.finish()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
