"""Which checkpoints to keep: the newest few, and one of every so many steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outlast.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Keep:
    last: int = 3
    """How many of the newest to keep. More of them cost space, and survive damage that is found late."""
    every: int | None = None
    """Keep one of every so many steps as well, for good: for looking back, and for
    starting over from there."""

    def validate(self) -> None:
        # Whoever saves in the background has nobody to tell, so it is found here: also what is no number.
        if type(self.last) is not int or self.last < 1:
            raise ConfigError(
                f"keep last = {self.last!r}: at least one checkpoint has to be kept; give a whole number."
            )
        if self.every is not None and (type(self.every) is not int or self.every < 1):
            raise ConfigError(f"keep every = {self.every!r}: give a whole number of steps, at least 1.")


def kept_steps(steps: Sequence[int], keep: Keep) -> set[int]:
    """Which of these steps to keep; they are those of good checkpoints on the trunk.

    Of every window of `keep.every` steps it is the first one that there is: the one that later calls choose
    again. A save that comes a little late, because the others wait for it or because it is made by the
    clock, still is the first of its window.
    """
    keep.validate()
    newest = sorted(set(steps))[-keep.last :]
    first: dict[int, int] = {}
    if keep.every is not None:
        for step in sorted(set(steps)):
            first.setdefault(step // keep.every, step)
    return {*newest, *first.values()}
