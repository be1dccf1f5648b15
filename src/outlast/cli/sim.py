"""`outlast sim`: the protocol under many seeds, or one seed replayed with its story."""

import argparse
import sys
import time
from collections.abc import Callable

from outlast.sim.simulation import Simulation
from outlast.sim.sweep import Tally, sweep

VIOLATED = 1


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="outlast sim",
        description="Run the real protocol cores in a simulated world of crashes, partitions, pauses, lost "
        "messages and slow disks, and check every promise at every event. A violation prints its seed.",
    )
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="how many seeds (1000)")
    parser.add_argument("--start", type=int, default=0, metavar="S", help="the first of them (0)")
    parser.add_argument("--seed", type=int, metavar="S", help="replay this one and print its transcript")
    parser.add_argument(
        "--keep-going", action="store_true", help="run all seeds, and list those that break a promise"
    )
    options = parser.parse_args(argv)
    if options.seed is not None:
        return _replay(options.seed)
    if options.seeds < 1:
        parser.error(f"--seeds is {options.seeds}; use at least 1")
    began = time.monotonic()
    show = _progress(options.seeds) if sys.stderr.isatty() else lambda _: None
    most = options.seeds if options.keep_going else 1
    tally, violations = sweep(range(options.start, options.start + options.seeds), show, most=most)
    if violations:
        violations.sort(key=lambda one: one.seed)
        print(violations[0].story)
        print()
        for one in violations:
            print(f"seed {one.seed}: {one.violation}")
        print(f"{len(violations)} of {tally.seeds} seeds broke a promise")
        print(f"replay one with: outlast sim --seed {violations[0].seed}")
        return VIOLATED
    took_s = time.monotonic() - began
    print(
        f"{tally.seeds} seeds, {tally.views} views and {tally.steps} steps in {took_s:.0f} s: "
        f"every promise held (slowest return after faults: {tally.slowest_return_s:.1f} s of virtual time)"
    )
    return 0


def _replay(seed: int) -> int:
    simulation = Simulation(seed)
    outcome = simulation.run()
    print(simulation.world.story(last=10**6))
    if outcome.violation is not None:
        print(f"\nseed {seed}: {outcome.violation}")
        return VIOLATED
    print(f"\nseed {seed}: every promise held")
    return 0


def _progress(seeds: int) -> Callable[[Tally], None]:
    def show(tally: Tally) -> None:
        print(f"\r{tally.seeds}/{seeds} seeds", end="", file=sys.stderr, flush=True)

    return show
