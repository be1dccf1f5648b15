"""What an agent hands to its replicas, through the environment and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.errors import ConfigError
from outlast.wire.handover import Handover, handover

GIVEN = Handover(run=Path("/runs/job"), replica=3, process=17, agent="agent-0", page=Path("/a/page"))


def test_what_is_handed_over_arrives() -> None:
    assert handover(GIVEN.environment()) == GIVEN
    assert handover({**GIVEN.environment(), "PATH": "/bin"}) == GIVEN


def test_without_an_agent_there_is_none() -> None:
    assert handover({"PATH": "/bin"}) is None


@pytest.mark.parametrize("name", [name for name in GIVEN.environment() if name != "OUTLAST_RUN"])
def test_half_a_handover_is_an_error_that_says_what_to_do(name: str) -> None:
    environment = GIVEN.environment()
    del environment[name]
    with pytest.raises(ConfigError, match="outlast run"):
        handover(environment)


def test_numbers_must_be_numbers() -> None:
    with pytest.raises(ConfigError, match="three"):
        handover({**GIVEN.environment(), "OUTLAST_REPLICA": "three"})
