"""What comes out at last: plain lines, a live picture, and a printer that nothing holds up."""

from __future__ import annotations

import io
import sys
import threading

import pytest

from outlast.run.live import LiveDisplay
from outlast.run.plain import PROGRESS_EVERY_S, PlainDisplay
from outlast.run.printer import QUEUED_LINES, Printer
from outlast.run.scene import TRAINING, Scene


def test_plain_lines_go_where_they_belong(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay()
    display.open()
    display.line("stdout", "[0] a loss")
    display.line("stderr", "[0] a warning")
    display.say("finished")
    display.close()
    told = capsys.readouterr()
    assert told.out == "[0] a loss\n"
    assert told.err == "[0] a warning\noutlast: finished\n"


def test_plain_progress_comes_at_the_beginning_and_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = 100.0
    display = PlainDisplay(clock=lambda: now)
    for stage, step, after_s in (
        ("importing torch", 0, 0.0),
        ("importing torch", 0, 0.5),
        ("starting replicas", 0, 0.5),
        (TRAINING, 0, 0.5),
        (TRAINING, 10, 0.5),
        (TRAINING, 20, 0.5),
        (TRAINING, 200, PROGRESS_EVERY_S - 1.0),
        (TRAINING, 240, 0.5),
    ):
        now += after_s
        scene = Scene(run="job", stage=stage, step=step, total=1500, loss=0.31214, training=3, wanted=3)
        display.show(scene if step == 0 else Scene(**{**vars(scene), "step_s": 0.05, "samples": 128}))
    display.close()
    assert capsys.readouterr().err.splitlines() == [
        "outlast: importing torch",
        "outlast: starting replicas",
        (
            "outlast: step 10 of 1,500 (0%), loss 0.3121, 2,560 samples/s, 1 min 14 s left, "
            "3 of 3 replicas training"
        ),
        (
            "outlast: step 240 of 1,500 (16%), loss 0.3121, 2,560 samples/s, 1 min 3 s left, "
            "3 of 3 replicas training"
        ),
    ]


def test_a_live_display_takes_whatever_replicas_print(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    display = LiveDisplay()
    display.open()
    display.line("stdout", "[0] [/bold] to the pipe")
    display.line("stderr", "[0] [/bold] [red]to the terminal")
    display.line("stderr", "no prefix")
    display.show(Scene(run="job"))
    display.say("[/] finished")
    display.close()
    assert out.getvalue() == "[0] [/bold] to the pipe\n"
    assert "[0] [/bold] [red]to the terminal" in err.getvalue()
    assert "[/] finished" in err.getvalue()


def test_a_live_display_that_was_never_opened_is_closed_without_a_trace(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert LiveDisplay().close()
    assert capsys.readouterr().err == ""


def test_what_a_slow_terminal_cannot_take_is_counted() -> None:
    go, printed, notes = threading.Event(), [], []
    printer = Printer(notes.append)
    total = QUEUED_LINES * 3
    for number in range(total):
        printer.put(lambda number=number: (go.wait(), printed.append(number)))
    go.set()
    printer.close(within_s=30)
    assert printed == list(range(len(printed)))
    assert sum(int(note.split()[1]) for note in notes) == total - len(printed)
    assert len(notes) == 1


def test_a_terminal_that_is_gone_stops_nobody() -> None:
    printed = []

    def broken() -> None:
        raise BrokenPipeError

    printer = Printer(lambda _: None)
    printer.put(broken)
    printer.put(lambda: printed.append(1))
    printer.close()
    assert printed == [1]
