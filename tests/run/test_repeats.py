"""The same traceback is shown once."""

from __future__ import annotations

from outlast.run.repeats import HELD_LINES, NEAR_LINES, Repeats

TRACEBACK = """Traceback (most recent call last):
  File "/train.py", line 10, in <module>
    raise RuntimeError(f"no luck, replica {replica}, pid {pid}")
RuntimeError: no luck, replica {}, pid {}"""
CHAINED = """Traceback (most recent call last):
  File "/train.py", line 1, in load
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/train.py", line 3, in <module>
ValueError: no x"""


class Shown:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.repeats = Repeats(lambda stream, text: self.lines.append(text))

    def hear(self, replica: int, text: str, stream: str = "stderr") -> None:
        for line in text.splitlines():
            self.repeats.line(stream, f"[{replica}] {line}")


def traceback(replica: int, pid: int) -> str:
    return TRACEBACK.replace("{}", str(replica), 1).replace("{}", str(pid), 1)


def test_a_traceback_that_differs_in_numbers_alone_becomes_one_line() -> None:
    shown = Shown()
    shown.hear(0, f"{traceback(0, 17)}\nreplica 0 exited with status 1")
    assert len(shown.lines) == 5
    shown.hear(1, f"{traceback(1, 18)}\nreplica 1 exited with status 1")
    shown.hear(0, traceback(0, 19))
    shown.repeats.flush()
    assert shown.lines[5:] == [
        "[1] RuntimeError: no luck, replica 1, pid 18 (the same traceback as above, 2 times by now)",
        "[1] replica 1 exited with status 1",
        "[0] RuntimeError: no luck, replica 0, pid 19 (the same traceback as above, 3 times by now)",
    ]


def test_another_line_of_the_source_is_another_traceback() -> None:
    shown = Shown()
    shown.hear(0, traceback(0, 1) + "\nend")
    shown.hear(0, traceback(0, 1).replace("line 10", "line 11") + "\nend")
    assert sum("Traceback" in line for line in shown.lines) == 2


def test_exceptions_that_follow_from_each_other_are_one() -> None:
    shown = Shown()
    for _ in range(2):
        shown.hear(0, CHAINED)
        shown.repeats.flush()
    assert shown.lines == [
        *(f"[0] {line}" for line in CHAINED.splitlines()),
        "[0] ValueError: no x (the same traceback as above, 2 times by now)",
    ]


def test_what_two_replicas_say_at_once_is_not_mixed_up() -> None:
    shown = Shown()
    for one, other in zip(traceback(0, 1).splitlines(), traceback(1, 2).splitlines(), strict=True):
        shown.repeats.line("stderr", f"[0] {one}")
        shown.repeats.line("stderr", f"[1] {other}")
        shown.repeats.line("stdout", "[1] a loss")
    assert shown.repeats.holding
    shown.repeats.flush()
    assert not shown.repeats.holding
    assert shown.lines == [
        *(["[1] a loss"] * 4),
        *(f"[0] {line}" for line in traceback(0, 1).splitlines()),
        "[1] RuntimeError: no luck, replica 1, pid 2 (the same traceback as above, 2 times by now)",
    ]


def test_whatever_is_held_comes_out_at_last_and_in_order() -> None:
    shown = Shown()
    endless = "Traceback (most recent call last):\n" + "\n".join(f"  line {n}" for n in range(HELD_LINES))
    shown.hear(0, endless)
    assert shown.lines == [f"[0] {line}" for line in endless.splitlines()]
    shown.repeats.line("stderr", "agent: a word")
    shown.repeats.line("stderr", "[0] ")
    assert shown.lines[-2:] == ["agent: a word", "[0] "]


def test_last_words_that_were_just_shown_are_in_sight() -> None:
    shown = Shown()
    words = f"a warning\n{traceback(0, 17)}"
    assert not shown.repeats.in_sight(words)
    shown.hear(0, words + "\nend")
    assert shown.repeats.in_sight(words)
    assert shown.repeats.in_sight(traceback(0, 99)), "of its next life"
    assert not shown.repeats.in_sight("killed")
    shown.hear(0, "more\n" * (NEAR_LINES + 1))
    assert not shown.repeats.in_sight(words)
