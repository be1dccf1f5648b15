"""What a replica still has to do when its script has come to its end.

The process of a script ends with it, as a rule. One whose peers may still need it stays (`train/engine.py`
says why): it asks to be called when nothing of the script is left to do, its exit hooks included, with the
status that the process is about to exit with.
"""

from collections.abc import Callable

_hooks: list[Callable[[int], None]] = []


def before_exit(hook: Callable[[int], None]) -> None:
    _hooks.append(hook)


def part(status: int) -> None:
    while _hooks:
        _hooks.pop()(status)
