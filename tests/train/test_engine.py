"""What the training thread says of itself while it waits; the cluster tests have the rest."""

from types import SimpleNamespace
from typing import Any

from outlast.protocol.messages import Phase
from outlast.train.engine import Engine


class Ending:
    """A replica that has left the loop of steps. While it waits for the others it hears that all have, and a
    save is still under way then."""

    def __init__(self) -> None:
        self.phases: list[Phase] = []
        self.conduct = SimpleNamespace(
            check=lambda: None, over=None, back=None, all_done=False, enter=self.phases.append
        )
        self.applied = 25
        self._giving = SimpleNamespace(due=lambda _: None, idle=True)
        self._comparing = None
        self._waits = 0

    def _save_due(self) -> None:
        return None

    def _wait(self) -> None:
        self._waits += 1
        self.conduct.all_done = self._waits >= 2

    def look(self) -> int | None:
        return 1 if self._waits == 4 else None


def test_what_is_left_to_do_in_the_end_is_nobodys_wait_whenever_the_end_is_heard() -> None:
    """Else a storage that is slow at the end of a run looks like members that wait for each other."""
    ending: Any = Ending()
    assert Engine._next(ending, ending.look) == 1
    assert ending.phases == [Phase.WAITING, Phase.ASIDE, Phase.COMPUTING]
