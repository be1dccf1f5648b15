"""Bit for bit under a rule, too: whoever computes the shards, and whoever dies."""

import pytest
from training_job import RULES
from training_run import TrainingRun

# The one that remembers its last result is tried every time.
ALWAYS = ("centred_clipping",)
EACH_RULE = [pytest.param(rule, marks=[] if rule in ALWAYS else [pytest.mark.soak]) for rule in RULES]
KILLS = "scatter@8:0 joining@any:0.2 gather@any:0.3 backward@any:1 reduced@any:1.2"


@pytest.mark.parametrize("rule", EACH_RULE)
def test_kills_leave_no_trace_under_a_rule(rule: str) -> None:
    with TrainingRun(3, "--crash", KILLS, steps=250, shards=5, rule=rule) as run:
        run.wait_for_life(0, 4)
        run.wait_for_life(1, 3)
        run.kill(2)
        run.wait_for_life(2, 2)
        run.finish()


@pytest.mark.parametrize("rule", EACH_RULE)
def test_any_number_of_replicas_comes_to_the_same_under_a_rule(rule: str, soak: bool) -> None:
    for replicas in (1, 2, 3, 5) if soak else (2,):
        with TrainingRun(replicas, steps=60, shards=5, rule=rule, pace_s=0) as run:
            run.finish()
