"""Scenes from the life of a coordinator, as texts that can be read from top to bottom.

Every `*.txt` beside this file is one scene. Its lines are

    # A comment.
    given 3 replicas, each with its own agent        how things stand at the beginning
    at 0.30  agent-2 beats: replica 2 was killed …   something happens, at this time
    until 1.50  agents 0 1 beat; replicas 0 1 …      ticks every 50 ms, and these every 100 ms, until then
        -> commit view 2 [0.1 1.1] …                 what the coordinator does about it

`2.1` is replica 2 in its first life (incarnation 1). The lines with arrows are compared with what the real
`CoordinatorCore` does. During `until`, acknowledgements and renewals of the lease are left out, and every
action says when it happened. The sentences that may follow a time are listed in `transcript_stage.py`.

After a change that is meant to change behaviour, have the arrows written anew, and read the difference:

    OUTLAST_TRANSCRIPTS=rewrite pytest tests/transcripts; git diff tests/transcripts
"""

import os
import re
from pathlib import Path

import pytest
from transcript_stage import Stage

SCENES = sorted(Path(__file__).parent.glob("*.txt"))
ARROW = "    -> "


def played(text: str) -> str:
    """The same text, with the arrows that belong to it."""
    stage, lines = Stage(), []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith(ARROW):
            continue
        lines.append(line)
        if not line or line.startswith("#"):
            continue
        try:
            _play(stage, line)
        except AssertionError as error:
            raise AssertionError(f"line {number}: {line}\n{error}") from error
        lines += [ARROW + words for words in stage.heard()]
    return "\n".join(lines) + "\n"


def _play(stage: Stage, line: str) -> None:
    if line.startswith("given "):
        stage.play(line)
        return
    timed = re.fullmatch(r"(at|until) (\d+\.\d\d)  (\S.*)", line)
    assert timed is not None, "a line begins with `given`, `at 0.00  ` or `until 0.00  `"
    moment = float(timed[2])
    assert moment >= stage.now, "time goes forwards"
    if timed[1] == "at":
        stage.now = moment
        stage.play(timed[3])
    else:
        stage.pass_time(moment, timed[3].split("; "))


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.stem)
def test_the_coordinator_acts_as_written(scene: Path) -> None:
    written = scene.read_text()
    acted = played(written)
    if os.environ.get("OUTLAST_TRANSCRIPTS") == "rewrite":
        scene.write_text(acted)
        pytest.skip("written anew, not compared")
    assert acted.splitlines() == written.splitlines()


def test_there_are_scenes() -> None:
    assert len(SCENES) >= 10


def test_a_transcript_that_tells_something_else_is_noticed() -> None:
    """The runner itself can fail: a missing, an added and an altered arrow all differ from what is played."""
    scene = Path(__file__).with_name("a_replica_is_killed.txt").read_text()
    arrows = [line for line in scene.splitlines() if line.startswith(ARROW)]
    assert played(scene) == scene
    for arrow in arrows:
        without = scene.replace(arrow + "\n", "", 1)
        assert played(without) != without
    assert played(scene + ARROW + "load\n") != scene + ARROW + "load\n"


@pytest.mark.parametrize(
    "line",
    ["at 0.00  the moon rises", "0.00 the coordinator starts", "at 0.00  store: committed"],
    ids=["no such sentence", "no such form", "no write is under way"],
)
def test_a_line_that_makes_no_sense_is_an_error_that_names_it(line: str) -> None:
    with pytest.raises(AssertionError, match="line 2"):
        played(f"given 1 replica, each with its own agent\n{line}\n")
