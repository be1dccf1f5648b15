"""What a person gets to see."""

from __future__ import annotations

import io
import sys
import threading

import pytest
from rich.console import Console

from outlast.protocol.messages import Phase, Pulse, Status
from outlast.protocol.views import Member, Outcome, Seat, Standing, View
from outlast.run.display import QUEUED_LINES, LiveDisplay, PlainDisplay, Printer, describe, render, waiting


def shown(status: Status) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(render(status))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_view_is_one_line() -> None:
    view = View(
        number=7, members=(Member(0, 1), Member(2, 3)), learners=(Member(1, 2),), cause="replica 1 is back"
    )
    assert describe(view) == "view 7: members 0,2, learning 1 (replica 1 is back)"
    assert describe(View(number=8)) == "view 8: members none"


def test_a_lack_of_replicas_is_said() -> None:
    def seat(replica: int, standing: Standing) -> Seat:
        return Seat(replica=replica, standing=standing)

    one = View(number=3, members=(Member(0, 1),), paused=True)
    paused = Status(job="job", view=one, seats=(seat(0, Standing.MEMBER),), needed=2)
    assert waiting(paused) == "waiting: 1 of at least 2 replicas"
    assert waiting(paused) in shown(paused)
    forming = Status(job="job", view=View(), seats=(seat(0, Standing.LEARNER),), needed=2)
    assert waiting(forming) == "waiting: 1 of at least 2 replicas"
    assert waiting(Status(job="job", view=View(), seats=())) == ""
    assert waiting(Status(job="job", view=View(number=3, members=(Member(0, 1),)), seats=(), needed=1)) == ""
    ended = Outcome(finished=True, reason="all work is done")
    assert waiting(Status(job="job", view=one, seats=(), needed=2, outcome=ended)) == ""


def test_a_status_shows_every_seat_and_every_trouble() -> None:
    view = View(number=3, members=(Member(0, 1),))
    seats = tuple(
        Seat(replica=replica, standing=standing, incarnation=1, agent="agent-0")
        for replica, standing in reversed(list(enumerate(Standing)))
    )
    pulse = Pulse(replica=1, process=1, pid=42, step=17, phase=Phase.COMPUTING, pace_s=0.25)
    text = shown(Status(job="job", view=view, seats=seats, pulses=(pulse,)))
    lines = text.splitlines()
    assert lines[0].split() == ["job", "view", "3"]
    assert [line.split()[1] for line in lines[1:]] == ["0", "1", "2", "3", "4"], "in order"
    for standing in Standing:
        assert standing.value in text
    assert "step 17" in lines[2]
    assert "250 ms/step" in lines[2]
    assert "pid 42" in lines[2]

    text = shown(
        Status(
            job="job",
            view=view,
            seats=(),
            silent=("agent-1",),
            rejected={"malformed": 2, "credentials": 1},
            trouble="the disk is full",
            outcome=Outcome(finished=False, reason="replica 0 failed"),
        )
    )
    assert "not heard from: agent-1" in text
    assert "turned away: 1 credentials, 2 malformed" in text
    assert "the disk is full" in text
    assert "replica 0 failed" in text


def test_text_of_a_job_is_never_taken_for_markup() -> None:
    view = View(number=1)
    trouble = "[red]not red[/red] [/]"
    assert trouble in shown(Status(job="[b]job", view=view, seats=(), trouble=trouble))


def test_plain_lines_go_where_they_belong(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay()
    display.line("stdout", "[0] a loss")
    display.line("stderr", "[0] a warning")
    display.say("finished")
    display.view(View(number=1, cause="the first view"))
    display.status(Status(job="job", view=View(), seats=()))
    display.close()
    told = capsys.readouterr()
    assert told.out == "[0] a loss\n"
    assert told.err == "[0] a warning\noutlast: finished\noutlast: view 1: members none (the first view)\n"


def test_a_live_display_takes_whatever_replicas_print(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    display = LiveDisplay()
    display.line("stdout", "[0] [/bold] to the pipe")
    display.line("stderr", "[0] [/bold] [red]to the terminal")
    display.line("stderr", "no prefix")
    display.status(Status(job="job", view=View(number=5), seats=()))
    display.say("[/] finished")
    display.close()
    assert out.getvalue() == "[0] [/bold] to the pipe\n"
    assert "[0] [/bold] [red]to the terminal" in err.getvalue()
    assert "[/] finished" in err.getvalue()


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
