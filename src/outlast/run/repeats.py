"""The same traceback again and again: it is shown once.

A script that fails is started again, and fails again; with several replicas, each of them. Line by line that
buries what happened under copies of it. So tracebacks are held back until they are complete, and one that was
shown already, but for numbers of replicas, processes and addresses, becomes one line. The replicas' logs keep
everything.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

TRACEBACK = "Traceback (most recent call last):"
HELD_LINES = 2000
"""One that is longer is shown as it comes."""
REMEMBERED = 200
NEAR_LINES = 60
"""What was shown no more lines ago is still in sight."""

_PREFIX = re.compile(r"\[ *(\d+)\] ")
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_CHANGING = re.compile(r"0x[0-9a-f]+|(?<!line )(?<!\d)\d+")
"""Everything but the lines of the source."""


@dataclass
class _Held:
    lines: list[str] = field(default_factory=list)
    """As they came, with their prefix."""
    ended: bool = False
    """Whether the last line may be the last one: it names the exception."""


@dataclass
class _Known:
    times: int
    shown_at: int
    """How many lines had been shown by then."""


class Repeats:
    """Between those who read what replicas say and those who show it."""

    def __init__(self, show: Callable[[str, str], None]) -> None:
        self._show = show
        self._held: dict[str, _Held] = {}
        self._known: dict[str, _Known] = {}
        self._shown = 0

    @property
    def holding(self) -> bool:
        return bool(self._held)

    def line(self, stream: str, text: str) -> None:
        prefix = _PREFIX.match(text)
        if stream != "stderr" or prefix is None:
            self._pass(stream, text)
            return
        whose, rest = prefix[0], text[prefix.end() :]
        held = self._held.get(whose)
        if held is None:
            if rest == TRACEBACK:
                self._held[whose] = _Held([text])
            else:
                self._pass(stream, text)
            return
        if held.ended and not _goes_on(rest):
            self._release(whose)
            self.line(stream, text)
            return
        held.lines.append(text)
        held.ended = not rest.startswith((" ", "\t")) and bool(rest) and rest not in (*_CHAINED, TRACEBACK)
        if len(held.lines) >= HELD_LINES:
            self._release(whose)

    def flush(self) -> None:
        """Nothing more is to come of these, or not soon."""
        for whose in list(self._held):
            self._release(whose)

    def in_sight(self, last_words: str) -> bool:
        """Whether the traceback in there was shown a moment ago."""
        found = last_words.find(TRACEBACK)
        known = self._known.get(_essence(_tail(last_words[found:].splitlines()))) if found >= 0 else None
        return known is not None and self._shown - known.shown_at <= NEAR_LINES

    def _release(self, whose: str) -> None:
        lines = self._held.pop(whose).lines
        bare = [line[len(whose) :] for line in lines]
        name = _essence(_tail(bare))
        known = self._known.get(name)
        if known is None:
            for line in lines:
                self._pass("stderr", line)
            while len(self._known) >= REMEMBERED:
                self._known.pop(next(iter(self._known)))
            self._known[name] = _Known(1, self._shown)
            return
        known.times += 1
        error = _tail(bare)[-1]
        self._pass("stderr", f"{whose}{error} (the same traceback as above, {known.times} times by now)")

    def _pass(self, stream: str, text: str) -> None:
        self._shown += 1
        self._show(stream, text)


def _goes_on(rest: str) -> bool:
    """Whether this line belongs to a traceback that seemed to be complete."""
    return not rest or rest in (*_CHAINED, TRACEBACK) or rest.startswith(("  ", "\t"))


def _tail(lines: list[str]) -> list[str]:
    """From its first line up to and including the one that names the exception."""
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    return lines


def _essence(lines: list[str]) -> str:
    return _CHANGING.sub("N", "\n".join(lines))
