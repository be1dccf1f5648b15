"""Jobs that everything happens to, and that must come to what one quiet process comes to.

    pytest tests/torture --torture-seed 17                           replays one schedule
    pytest tests/torture --torture-seed 17 --torture-count 20        and the next 19
    pytest tests/torture --torture-seed 17 --torture-only kill,cut   draws from these kinds of faults alone
    pytest tests/torture --torture-seed 17 --torture-cuts            cuts connections, again and again

`-rP` tells of those that pass, too: what was drawn, and what it met.
"""

from pathlib import Path

import pytest
from schedule import draw, draw_cuts
from story import Story
from verdict import failures_of_replicas


@pytest.mark.timeout(600)
def test_a_tortured_job_comes_to_what_a_quiet_one_comes_to(
    kind: str, seed: int, only: tuple[str, ...], tmp_path: Path
) -> None:
    cuts = kind == "cuts"
    story = Story(draw_cuts(seed) if cuts else draw(seed, only), tmp_path)
    story.run()
    print(story.outline())
    if cuts:
        # Nothing has happened to a replica itself.
        story.problems += failures_of_replicas(story.said())
    again = f"pytest tests/torture --torture-seed {seed}" + (" --torture-cuts" if cuts else "")
    again += f" --torture-only {','.join(only)}" if only and not cuts else ""
    assert not story.problems, f"replay with: {again}\n{story.report()}"
