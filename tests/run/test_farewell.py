"""The last lines of a run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from test_home import make_run

from outlast.protocol.events import View
from outlast.run import ended
from outlast.run.ended import Ending, FaultNote
from outlast.run.farewell import farewell, interrupted, reason
from outlast.run.remains import Remains, remains
from outlast.run.view_log import ViewLog
from outlast.wire.progress import Progress

KILLED = FaultNote(what="replica 1 was killed by SIGKILL", replica=1, step=240, lasted_s=1.9)


def ending(state: str, **more: object) -> Ending:
    given = {"exit_code": 0, "ended_at": 1.0, "took_s": 32.4, "step": 1500, "total": 1500, **more}
    return Ending(state=state, **given)  # type: ignore[arg-type]


def test_a_run_that_has_finished() -> None:
    assert farewell("job", ending("finished")) == [
        "finished: 1,500 steps in 32 s",
        "nothing failed on the way",
        "what the replicas printed: outlast logs job",
    ]
    saved = ending(
        "finished", faults=(KILLED,), faults_cost_s=3.1, saved_step=1500, saved_to="s3://b", resumed_from=1000
    )
    assert farewell("job", saved) == [
        "finished: step 1,500, 500 steps of it in 32 s",
        "survived 1 fault (replica 1 killed at step 240), which cost about 3.1 s",
        "the final checkpoint: step 1,500 in s3://b",
    ]
    assert farewell("job", ending("finished", step=0))[0] == "finished in 32 s"


def test_a_run_that_has_failed() -> None:
    failed = ending("failed", reason="replica 0 exited with status 1; its last words:", replica=0, step=240)
    assert farewell("job", failed) == [
        "failed after 32 s, at step 240 of 1,500",
        "replica 0 exited with status 1",
        "see `outlast logs job --replica 0`",
    ]
    early = ending("failed", reason="no coordinator", step=0, saved_step=9, saved_to="/ckp")
    assert farewell("job", early) == [
        "failed after 32 s, before its first step",
        "no coordinator",
        "see `outlast logs job`; step 9 is saved in /ckp, the same command goes on from there",
    ]
    assert reason("a\n  b" + "c" * 1000).startswith("a bccc")
    assert reason("c" * 1000).endswith("c…")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"step": 0}, "stopped before the first step"),
        (
            {},
            "stopped at step 509; nothing was saved, since the script gives no checkpoints= to outlast.join",
        ),
        ({"saved_to": "/c"}, "stopped at step 509; nothing is saved in /c: the same command begins anew"),
        (
            {"saved_to": "/c", "saved_step": 509},
            "stopped at step 509; saved to /c, the same command goes on from there",
        ),
        (
            {"saved_to": "/c", "saved_step": 500},
            "stopped at step 509; step 500 is saved in /c, the same command goes on from there",
        ),
    ],
)
def test_a_run_that_was_stopped_says_it_in_one_sentence(given: dict[str, object], words: str) -> None:
    assert farewell("job", ending("stopped", **{"step": 509, **given})) == [words]


def test_a_run_that_was_interrupted() -> None:
    assert interrupted(Remains()).endswith("or the machine went down")
    assert interrupted(Remains(step=9, saved_step=5, place="/c")).endswith(
        "at step 9; step 5 is saved in /c, the same command goes on from there"
    )


def test_an_end_is_written_down_and_read_again(tmp_path: Path) -> None:
    directory = make_run(tmp_path, "job")
    assert ended.read(directory) is None
    assert ended.state_of(directory.read(), None) == "interrupted"
    written = ending("finished", faults=(KILLED,))
    ended.write(directory, written)
    assert ended.read(directory) == written
    assert ended.state_of(directory.read(), written) == "finished"
    for content in (b"{", msgspec.json.encode(msgspec.structs.replace(written, format=99))):
        (directory.path / "ended.json").write_bytes(content)
        assert ended.read(directory) is None


def test_pages_tell_how_far_a_run_came_when_nobody_is_left(tmp_path: Path) -> None:
    directory = make_run(tmp_path, "job")
    assert remains(directory) == Remains()
    for replica, step in ((0, 41), (1, 42)):
        page = directory.agent("agent-0") / f"replica-{replica}.page"
        page.parent.mkdir(parents=True, exist_ok=True)
        progress = Progress.create(page)
        progress.join()
        progress.expect(100, 8)
        progress.saves_to("/ckp")
        progress.saved(40 if replica else -1, 0)
        progress.advance(step)
        progress.close()
    (directory.agent("agent-0") / "replica-2.page").write_bytes(b"junk")
    assert remains(directory) == Remains(True, 42, 100, 40, "/ckp")


def test_views_are_kept_and_what_cannot_be_written_comes_later(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.touch()
    log = ViewLog(folder / "views.log")
    log.write(View(number=1, cause="the first view"))
    folder.unlink()
    log.write(View(number=2))
    log.close()
    told = (folder / "views.log").read_text()
    assert told == "view 1: members none (the first view)\nview 2: members none\n"
