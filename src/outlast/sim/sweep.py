"""Many seeds, on all cores."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context

from outlast.kinship import die_with_parent
from outlast.sim.simulation import Cast, Simulation, Verdict

BATCH = 25


@dataclass
class Tally:
    """What a sweep has seen so far."""

    seeds: int = 0
    views: int = 0
    steps: int = 0
    left_out: int = 0
    """Contributions that did not count, by each member that completed a step without them."""
    charges: int = 0
    commits: int = 0
    resumes: int = 0
    """Beginnings of a lineage from a checkpoint."""
    returns: int = 0
    """How often members found that states differ, and went back."""
    slowest_return_s: float = 0.0

    def add(self, outcome: Verdict) -> None:
        self.seeds += 1
        self.views += outcome.views
        self.steps += outcome.steps
        self.left_out += outcome.left_out
        self.charges += outcome.charges
        self.commits += outcome.commits
        self.resumes += outcome.resumes
        self.returns += outcome.returns
        self.slowest_return_s = max(self.slowest_return_s, outcome.back_after_s)


def run_seed(seed: int, cast: Cast | None = None) -> Verdict:
    return Simulation(seed, cast).run()


def first_violation(seeds: Iterable[int], cast: Cast) -> Verdict | None:
    """The first seed that catches a mistake, run in this process."""
    return next((outcome for seed in seeds if not (outcome := run_seed(seed, cast)).ok), None)


def sweep(
    seeds: Iterable[int],
    progress: Callable[[Tally], None] = lambda _: None,
    cast: Cast | None = None,
    *,
    most: int = 1,
) -> tuple[Tally, list[Verdict]]:
    """Run all seeds, or until so many have broken a promise; which those are."""
    tally = Tally()
    violations: list[Verdict] = []
    workers = os.cpu_count() or 1
    batches = _batches(iter(seeds))
    # A fresh interpreter per worker: forking a process that may have threads is asking for trouble.
    spawn = get_context("spawn")
    with ProcessPoolExecutor(workers, spawn, initializer=die_with_parent, initargs=(os.getpid(),)) as pool:
        running = {pool.submit(_run_batch, batch, cast) for batch in islice(batches, workers * 2)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for outcome in (outcome for future in done for outcome in future.result()):
                tally.add(outcome)
                violations += [] if outcome.ok else [outcome]
            if len(violations) >= most:
                pool.shutdown(wait=False, cancel_futures=True)
                return tally, violations[:most]
            progress(tally)
            running |= {pool.submit(_run_batch, batch, cast) for batch in islice(batches, len(done))}
    return tally, violations


def _run_batch(seeds: list[int], cast: Cast | None) -> list[Verdict]:
    return [run_seed(seed, cast) for seed in seeds]


def _batches(seeds: Iterator[int]) -> Iterator[list[int]]:
    while batch := list(islice(seeds, BATCH)):
        yield batch
