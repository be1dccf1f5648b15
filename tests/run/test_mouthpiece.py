"""The agent's mouthpiece: it never waits for who listens, and says how much it has left out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import threading
from collections.abc import Callable

import pytest

from outlast.agent import mouthpiece
from outlast.agent.mouthpiece import BACKLOG_BYTES, Mouthpiece

LINE = "x" * 999


def heard(speak: Callable[[Mouthpiece], None], *, listen: bool = True) -> str:
    """What arrives at the other end of a pipe whose reader begins only when everything has been said."""
    read_end, write_end = os.pipe()
    received = bytearray()

    def read() -> None:
        while chunk := os.read(read_end, 1 << 16):
            received.extend(chunk)

    reader = threading.Thread(target=read)

    async def talk() -> None:
        mouth = Mouthpiece(write_end)
        speak(mouth)
        if listen:
            reader.start()
        await mouth.drain()
        os.close(write_end)

    asyncio.run(talk())
    if not listen:
        reader.start()
    reader.join()
    os.close(read_end)
    return received.decode()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mouthpiece, "DRAIN_WITHIN_S", 30.0)


@pytest.mark.usefixtures("patient")
def test_what_fits_arrives_however_late_it_is_read() -> None:
    def speak(mouth: Mouthpiece) -> None:
        for number in range(500):
            mouth.say(f"{number} {LINE}")

    assert heard(speak).splitlines() == [f"{number} {LINE}" for number in range(500)]


@pytest.mark.usefixtures("patient")
def test_what_does_not_fit_is_counted_in_one_note() -> None:
    total = 3 * BACKLOG_BYTES // len(LINE)

    def speak(mouth: Mouthpiece) -> None:
        for _ in range(total):
            mouth.say(LINE)

    *lines, note = heard(speak).splitlines()
    assert set(lines) == {LINE}
    found = re.fullmatch(r"… (\d+) lines are left out here; the logs have them", note)
    assert found is not None
    assert int(found[1]) == total - len(lines)
    assert len(lines) >= BACKLOG_BYTES // 1000


def test_nobody_waits_long_for_somebody_who_does_not_listen() -> None:
    """That this returns at all is the test; the pipe holds what it could take."""

    def speak(mouth: Mouthpiece) -> None:
        for _ in range(500):
            mouth.say(LINE)

    assert heard(speak, listen=False).startswith(LINE)


def test_a_listener_that_is_gone_is_no_reason_to_stop() -> None:
    async def talk() -> None:
        read_end, write_end = os.pipe()
        mouth = Mouthpiece(write_end)
        os.close(read_end)
        for _ in range(10):
            mouth.say(LINE)
        await mouth.drain()
        os.close(write_end)

    asyncio.run(talk())


@pytest.mark.usefixtures("patient")
def test_the_note_arrives_even_if_nothing_follows_it() -> None:
    async def talk(read_end: int, write_end: int) -> str:
        mouth = Mouthpiece(write_end)
        for _ in range(3 * BACKLOG_BYTES // len(LINE)):
            mouth.say(LINE)
        os.set_blocking(read_end, False)
        text = b""
        # All that was kept is read, and only then is it over.
        while mouth._backlog:
            await asyncio.sleep(0)
            with contextlib.suppress(BlockingIOError):
                text += os.read(read_end, 1 << 20)
        await mouth.drain()
        return (text + os.read(read_end, 1 << 20)).decode()

    read_end, write_end = os.pipe()
    assert "lines are left out here" in asyncio.run(talk(read_end, write_end))
    os.close(read_end)
    os.close(write_end)
