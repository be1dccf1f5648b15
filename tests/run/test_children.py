"""The launcher's children: who is started again, and who has had the last word."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from outlast.errors import StoreFull
from outlast.run import children
from outlast.run.children import Child
from patience import PATIENCE_S


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`module(source)` writes a module that a child can run; `lives` counts how often it was."""

    def write(source: str) -> str:
        (tmp_path / "a_child.py").write_text(
            "import os, pathlib, signal, sys, time\n"
            f"lives = pathlib.Path({str(tmp_path)!r}) / 'lives'\n"
            "life = len(lives.read_text()) + 1 if lives.exists() else 1\n"
            "lives.write_text('x' * life)\n" + source
        )
        return "a_child"

    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return write


def lives(tmp_path: Path) -> int:
    return len((tmp_path / "lives").read_text())


def run(child: Child) -> int:
    return asyncio.run(asyncio.wait_for(child.run(), 60))


def quiet(_stream: str, _text: str) -> None:
    pass


def test_a_killed_child_is_replaced_until_it_ends_by_itself(module: Any, tmp_path: Path) -> None:
    name = module("if life < 3: os.kill(os.getpid(), signal.SIGKILL)")
    child = Child("one", name, [], on_line=quiet)
    assert run(child) == 0
    assert (lives(tmp_path), child.restarts) == (3, 2)


def test_a_child_that_fails_at_once_is_not_replaced(module: Any, tmp_path: Path) -> None:
    said: list[tuple[str, str]] = []
    name = module("print('hello'); print('one: it is broken', file=sys.stderr); sys.exit(7)")
    child = Child("one", name, [], on_line=lambda stream, text: said.append((stream, text)))
    assert run(child) == 7
    assert lives(tmp_path) == 1
    assert sorted(said) == [("stderr", "one: it is broken"), ("stdout", "hello")]
    assert child.last_line() == "it is broken"


def test_a_child_that_was_of_use_is_replaced_whatever_it_ended_with(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "USEFUL_AFTER_S", 0.0)
    name = module("sys.exit([1, 8, 0, 7][life - 1])")
    assert run(Child("one", name, [], final=(7,), on_line=quiet)) == 7
    assert lives(tmp_path) == 4


def test_one_that_was_killed_is_replaced_when_there_is_space_again(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "SPACE_AGAIN_S", 0.01)
    full = StoreFull.exit_code
    name = module(f"if life == 1: os.kill(os.getpid(), signal.SIGKILL)\nsys.exit({full} if life < 5 else 0)")
    assert run(Child("one", name, [], on_line=quiet)) == 0
    assert lives(tmp_path) == 5


def test_one_that_never_found_space_has_the_last_word(module: Any, tmp_path: Path) -> None:
    assert run(Child("one", module(f"sys.exit({StoreFull.exit_code})"), [], on_line=quiet)) == 6
    assert lives(tmp_path) == 1


def test_a_child_that_dies_again_and_again_is_given_up(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = module("os.kill(os.getpid(), signal.SIGKILL)")
    child = Child("one", name, [], on_line=quiet)
    monkeypatch.setattr(child, "_deaths", type(child._deaths)(maxlen=3))
    monkeypatch.setattr(children, "RESTARTS", 3)
    assert run(child) == -signal.SIGKILL
    assert lives(tmp_path) == 3


def test_a_signal_reaches_a_child_that_is_only_being_started(module: Any, tmp_path: Path) -> None:
    async def stop_at_once() -> int:
        child = Child("one", module("time.sleep(1000)"), [], on_line=quiet)
        running = asyncio.ensure_future(child.run())
        await asyncio.sleep(0)
        assert child.pid is None
        child.signal(signal.SIGTERM)
        return await asyncio.wait_for(running, PATIENCE_S)

    assert asyncio.run(stop_at_once()) == -signal.SIGTERM


def test_a_child_knows_its_parent_and_has_its_own_session(module: Any) -> None:
    said: list[str] = []
    name = module("print(sys.argv[1:], os.getsid(0) == os.getpid())")
    assert run(Child("one", name, ["--x"], on_line=lambda _, text: said.append(text))) == 0
    assert said == [f"['--x', '--parent', '{os.getpid()}'] True"]


def test_a_child_that_is_stopped_for_good_is_replaced_by_one_that_knows_its_last_will(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "LOOK_EVERY_S", 0.05)
    said: list[str] = []
    stopped: list[int] = []
    name = module(
        "print(sys.argv[1:], flush=True)\n"
        "while life == 1: os.kill(os.getpid(), signal.SIGSTOP)\n"
        "if life == 2: os.kill(os.getpid(), signal.SIGKILL)"
    )

    def last_will(pid: int) -> list[str]:
        stopped.append(pid)
        return ["--left", "something"]

    def hear(_stream: str, text: str) -> None:
        said.append(text)

    child = Child("one", name, ["--x"], stopped_for_s=0.3, last_will=last_will, on_line=hear)
    assert run(child) == 0
    assert (lives(tmp_path), len(stopped)) == (3, 2), "it was woken once, and stopped again"
    assert [text.count("something") for text in said] == [0, 1, 0]


def test_a_stopped_child_that_has_something_to_tell_is_woken_and_tells_it(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "LOOK_EVERY_S", 0.05)
    said: list[str] = []
    name = module("os.kill(os.getpid(), signal.SIGSTOP)\nprint('the last line')")
    child = Child(
        "one",
        name,
        [],
        stopped_for_s=0.3,
        last_will=lambda _: ["--left", "something"],
        on_line=lambda _, text: said.append(text),
    )
    assert run(child) == 0
    assert (lives(tmp_path), child.restarts, said) == (1, 0, ["the last line"])


def test_a_child_that_was_woken_and_is_killed_later_leaves_no_will(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has told everything itself."""
    monkeypatch.setattr(children, "LOOK_EVERY_S", 0.05)
    said: list[str] = []
    name = module(
        "print(sys.argv[1:], flush=True)\n"
        "if life == 1:\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    child = Child(
        "one",
        name,
        [],
        stopped_for_s=0.3,
        last_will=lambda _: ["--left", "something"],
        on_line=lambda _, text: said.append(text),
    )
    assert run(child) == 0
    assert lives(tmp_path) == 2
    assert not any("something" in text for text in said)


def test_a_child_is_replaced_although_something_it_left_behind_holds_its_pipes(
    module: Any, tmp_path: Path
) -> None:
    left = tmp_path / "left"
    name = module(
        "if life == 1:\n"
        "    import subprocess\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'])\n"
        f"    pathlib.Path({str(left)!r}).write_text(str(child.pid))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    try:
        assert run(Child("one", name, [], on_line=quiet)) == 0
    finally:
        os.kill(int(left.read_text()), signal.SIGKILL)
    assert lives(tmp_path) == 2


def test_a_child_that_is_killed_after_its_role_is_over_is_not_replaced(module: Any, tmp_path: Path) -> None:
    async def retire() -> int:
        name = module("os.kill(os.getpid(), signal.SIGKILL)")
        child = Child("one", name, [], on_line=quiet)
        child.retire()
        return await asyncio.wait_for(child.run(), 60)

    assert asyncio.run(retire()) == -signal.SIGKILL
    assert lives(tmp_path) == 1
