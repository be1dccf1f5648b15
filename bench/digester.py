"""The replica's program of `bench digests`: training, with and without a comparison of states, in turns.

    outlast run -n 2 bench/digester.py '{"width": 1024, ...}'

Whoever is the chief decides when states are compared, so it is enough if that one takes turns: a block in
which one comparison falls, as long as the interval that `auto` chooses, and one that is as long and has none.
"""

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import outlast
from outlast.train.comparing import checksum

ENDLESS = 1_000_000
LAYERS = 4
LEARNING_RATE = 1e-4
CHECKSUMS = 20
SETTLED = 3
"""Comparisons after which the interval is believed."""


class Trainee:
    def __init__(self, plan: dict[str, Any]) -> None:
        width = plan["width"]
        layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(width, width), nn.ReLU())]
        self._model = nn.Sequential(*layers)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=LEARNING_RATE)
        torch.manual_seed(1)
        self._batch = torch.randn(plan["batch"], plan["width"])
        self.job = outlast.join(model=self._model, optimizer=self._optimizer)
        self._steps = self.job.steps(ENDLESS)

    def step(self) -> None:
        step = next(self._steps)
        for _ in step:
            step.backward(self._model(self._batch).square().mean())
        self._optimizer.step()
        self._optimizer.zero_grad()

    def block(self, seconds: float) -> tuple[float, float]:
        """Steps per second, and seconds of CPU time that a step has taken this replica, in all threads."""
        begun, cpu_begun, steps = time.perf_counter(), time.process_time(), 0
        while (passed_s := time.perf_counter() - begun) < seconds:
            self.step()
            steps += 1
        return steps / passed_s, (time.process_time() - cpu_begun) / steps

    def checksum_s(self) -> float:
        """What the checksum of one contribution takes, which two members make in every step."""
        flat = torch.randn(sum(parameter.numel() for parameter in self._model.parameters()))
        found = []
        for _ in range(CHECKSUMS):
            begun = time.perf_counter()
            checksum(flat)
            found.append(time.perf_counter() - begun)
        return sorted(found)[CHECKSUMS // 2]


def main() -> None:
    plan = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    trainee = Trainee(plan)
    with trainee.job as job:
        if not job.chief:
            while True:
                trainee.step()
        comparing = trainee.job._parts.engine._comparing
        assert comparing is not None
        rhythm = comparing._rhythm
        for _ in range(SETTLED):
            rhythm._chosen_at = -math.inf
            trainee.block(plan["warm_up_s"])
        interval_s = min(rhythm.interval_s, plan["longest_s"])
        found = []
        for pair in range(plan["pairs"]):
            rates, cpu_s = {}, {}
            for name in ("on", "off") if pair % 2 else ("off", "on"):
                rhythm._chosen_at = -math.inf if name == "on" else math.inf
                before = comparing.chosen
                rates[name], cpu_s[name] = trainee.block(interval_s)
                assert (comparing.chosen > before) is (name == "on"), "a comparison in each block, or none"
            found.append({**rates, "cpu_s": cpu_s})
            print(json.dumps(found[-1]), file=sys.stderr, flush=True)
        answer = {
            "pairs": found,
            "interval_s": rhythm.interval_s,
            "block_s": interval_s,
            "cost_s": rhythm._cost_s,
            "checksum_s": trainee.checksum_s(),
        }
        # Whoever waits for this file reads it as soon as there is one, so it comes as a whole.
        fresh = Path(plan["found"]).with_suffix(".fresh")
        fresh.write_text(json.dumps(answer))
        fresh.replace(plan["found"])
        # Everybody else goes on for ever, and whoever has started all of it has what it wants.
        while True:
            trainee.step()


if __name__ == "__main__":
    main()
