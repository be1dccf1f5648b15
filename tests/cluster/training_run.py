"""A cluster that trains `training_job.py`, and what its end must look like."""

import functools
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from outlast.protocol.messages import Status
from outlast.testing.cluster import LocalCluster
from outlast.train.audit import merge_ledgers
from patience import PATIENCE_S

SCRIPT = str(Path(__file__).with_name("training_job.py"))


@functools.cache
def hash_alone(steps: int, shards: int, rule: str | None = None, *more: str) -> str:
    """The hash of a run without faults, in one process that is started by hand."""
    done = subprocess.run(
        [sys.executable, SCRIPT, "--steps", str(steps), "--shards", str(shards), *_following(rule), *more],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=max(PATIENCE_S, 0.05 * steps),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("HASH ")[1].strip()


def _following(rule: str | None) -> list[str]:
    return [] if rule is None else ["--rule", rule]


class TrainingRun(LocalCluster):
    """Each shard takes a while until `finish`, so that there is time for faults."""

    def __init__(
        self,
        replicas: int,
        *script_options: str,
        steps: int = 400,
        shards: int | None = None,
        rule: str | None = None,
        data: tuple[str, ...] = (),
        pace_s: float = 0.06,
        ledgers: Path | None = None,
        options: tuple[str, ...] = (),
    ) -> None:
        super().__init__(replicas, [], options=options)
        self._steps = steps
        self._replicas = replicas
        self._shards = shards or replicas
        self._rule = rule
        self._data = data
        """Options that a run without faults needs as well, to have the same data."""
        self.ledgers = ledgers or self.home / "ledgers"
        self._enough = self.home / "enough"
        self._command += [SCRIPT, "--steps", str(steps), "--shards", str(self._shards), *script_options]
        self._command += [*_following(rule), *data]
        self._command += ["--pace", str(pace_s), "--enough", str(self._enough), "--ledger", str(self.ledgers)]

    def wait_until(self, what: str, condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        super().wait_until(what, condition, max(timeout_s, PATIENCE_S))

    def wait_for(
        self, what: str, condition: Callable[[Status], bool], timeout_s: float = PATIENCE_S
    ) -> Status:
        return super().wait_for(what, condition, max(timeout_s, PATIENCE_S))

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        return super().wait(max(timeout_s, PATIENCE_S))

    def wait_for_all(self) -> None:
        self.wait_for_members(set(range(self._replicas)))
        self.wait_for_steps(*range(self._replicas))

    def wait_for_step(self, step: int) -> None:
        """The job has come that far."""
        self.wait_until(f"step {step}", lambda: max(self.steps().values(), default=0) >= step)

    def finish(self) -> None:
        """Let the job end, and see that nothing shows of what happened to it."""
        self._enough.touch()
        code = self.wait()
        assert code == 0, self.said()
        self.check_result()

    def check_result(self) -> None:
        hashes = set(re.findall(r"HASH (\w+)", self.said("stdout")))
        assert hashes == {hash_alone(self._steps, self._shards, self._rule, *self._data)}, self.said()
        audit = merge_ledgers(sorted(self.ledgers.glob("*.ledger")))
        assert audit.ok and audit.steps == self._steps, audit.describe() + self.said()
        assert self.processes() == []
