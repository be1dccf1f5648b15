"""Looking for the newest good checkpoint, and remembering what was wrong with those that were passed over."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

from outlast.errors import ObjectDamaged, ObjectMissing
from outlast.state.vault.manifest import Manifest

log = logging.getLogger(__name__)


class Problem(NamedTuple):
    """An object that cannot be used, and why."""

    name: str
    reason: str


class Problems:
    """Gathers problems and tells each of them once, as a warning."""

    def __init__(self) -> None:
        self.all: list[Problem] = []

    def note(self, name: str, reason: str) -> None:
        problem = Problem(name, reason)
        if problem not in self.all:
            self.all.append(problem)
            log.warning("%s is passed over: %s", name, reason)


class Search(Iterator[tuple[str, Manifest]]):
    """Checkpoints along the trunk, newest first, as (name, manifest): those whose manifests are good.

    Whoever loads one and finds its chunks bad calls `reject`, and takes the next. What a storage that does
    not answer raises is raised: a checkpoint that cannot be reached just now is not a bad one, and going
    back to an older one would lose work.
    """

    def __init__(
        self,
        names: Iterator[str],
        read: Callable[[str], Manifest],
        trusted: Callable[[Manifest], bool] | None,
        problems: Problems,
    ) -> None:
        self._names = names
        self._read = read
        self._trusted = trusted
        self._problems = problems

    @property
    def problems(self) -> list[Problem]:
        """What was passed over so far."""
        return self._problems.all

    def reject(self, name: str, reason: str) -> None:
        self._problems.note(name, reason)

    def __next__(self) -> tuple[str, Manifest]:
        for name in self._names:
            try:
                manifest = self._read(name)
            except (ObjectDamaged, ObjectMissing) as error:
                self._problems.note(name, str(error))
                continue
            if self._trusted is None or self._trusted(manifest):
                return name, manifest
            self._problems.note(name, "it is not trusted: the run does not know that it was to be made")
        raise StopIteration
