"""Whatever a replica prints, the agent neither blocks nor loses it, and keeps its last words."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from outlast.agent import output
from outlast.agent.output import LAST_WORDS_LINES, LINE_MAX_BYTES, Output, Stream

Until = Any


class Scribe:
    """An Output whose lines are kept, and the write ends of its pipes."""

    def __init__(self, log: Path | None = None) -> None:
        self.lines: list[tuple[Stream, str]] = []
        self.output = Output(7, log=log, sink=self._sink)
        self.stdout, self.stderr = self.output.open()

    def _sink(self, replica: int, stream: Stream, line: str) -> None:
        assert replica == 7
        self.lines.append((stream, line))

    def hang_up(self) -> None:
        os.close(self.stdout)
        os.close(self.stderr)


def test_lines_of_both_streams_reach_sink_log_and_last_words(tmp_path: Path, wait_until: Until) -> None:
    log = tmp_path / "logs" / "replica-7.log"

    async def story() -> None:
        for life in ("first", "second"):
            scribe = Scribe(log)
            os.write(scribe.stdout, f"{life} one\n\n{life} ".encode())
            os.write(scribe.stdout, b"two\r\n")
            await wait_until(lambda seen=scribe.lines: len(seen) == 3)  # type: ignore[misc]
            os.write(scribe.stderr, b"oops\n")
            await wait_until(lambda seen=scribe.lines: len(seen) == 4)  # type: ignore[misc]
            assert scribe.lines == [
                ("stdout", f"{life} one"),
                ("stdout", ""),
                ("stdout", f"{life} two"),
                ("stderr", "oops"),
            ]
            assert scribe.output.last_words() == "oops"
            assert scribe.output.last_words("stdout") == f"{life} one\n\n{life} two"
            scribe.hang_up()
            scribe.output.finish()
            scribe.output.finish()

    asyncio.run(story())
    assert log.read_bytes() == b"first one\n\nfirst two\r\noops\nsecond one\n\nsecond two\r\noops\n"


def test_half_a_line_is_shown_after_a_while_and_at_the_end(wait_until: Until) -> None:
    async def story() -> None:
        scribe = Scribe()
        os.write(scribe.stdout, b"loading")
        await wait_until(lambda: scribe.lines == [("stdout", "loading")])
        os.write(scribe.stdout, b" done\nbye")
        scribe.output.finish()
        assert scribe.lines[1:] == [("stdout", " done"), ("stdout", "bye")]
        scribe.hang_up()

    asyncio.run(story())


def test_a_line_without_an_end_is_cut_and_nothing_of_it_is_lost(tmp_path: Path) -> None:
    log = tmp_path / "log"
    total = 10 * LINE_MAX_BYTES + 123

    async def story() -> None:
        scribe = Scribe(log)
        data = memoryview(b"x" * total + b"\nshort\n")
        os.set_blocking(scribe.stdout, False)
        while data:
            try:
                data = data[os.write(scribe.stdout, data) :]
            except BlockingIOError:
                await asyncio.sleep(0)
        scribe.hang_up()
        scribe.output.finish()
        *pieces, short = [line for _, line in scribe.lines]
        assert short == "short"
        assert max(map(len, pieces)) == LINE_MAX_BYTES
        assert sum(map(len, pieces)) == total
        assert len(scribe.output.last_words()) < 100_000

    asyncio.run(story())
    assert log.read_bytes().replace(b"\n", b"") == b"x" * total + b"short"


def test_binary_junk_is_shown_as_far_as_it_can_be(tmp_path: Path) -> None:
    junk = bytes(range(256))

    async def story() -> None:
        scribe = Scribe(tmp_path / "log")
        os.write(scribe.stderr, junk)
        scribe.hang_up()
        scribe.output.finish()
        assert "\ufffd" in scribe.output.last_words()

    asyncio.run(story())
    assert (tmp_path / "log").read_bytes() == junk + b"\n"


def test_a_progress_bar_shows_where_it_is_now() -> None:
    async def story() -> None:
        scribe = Scribe()
        os.write(scribe.stderr, b"\r 10%\r 20%\r 30%")
        scribe.output.finish()
        scribe.hang_up()
        assert scribe.lines == [("stderr", " 30%")]

    asyncio.run(story())


def test_last_words_are_the_last_and_bounded() -> None:
    async def story() -> None:
        scribe = Scribe()
        os.write(scribe.stdout, b"".join(b"%d\n" % number for number in range(1000)))
        scribe.output.finish()
        scribe.hang_up()
        words = scribe.output.last_words().split("\n")
        assert words == [str(number) for number in range(1000 - LAST_WORDS_LINES, 1000)]

    asyncio.run(story())


def test_a_pipe_that_a_grandchild_keeps_open_is_closed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "DRAIN_MAX_BYTES", 1)

    async def story() -> None:
        scribe = Scribe()
        os.write(scribe.stdout, b"held\n")
        scribe.output.finish()
        # The write ends are still open, as in a grandchild: it gets an error, and the agent goes on.
        with pytest.raises(BrokenPipeError):
            os.write(scribe.stdout, b"too late\n")
        scribe.hang_up()
        assert scribe.lines == [("stdout", "held")]

    asyncio.run(story())


def test_a_log_that_cannot_be_written_does_not_stop_the_reading() -> None:
    async def story() -> None:
        scribe = Scribe(Path("/dev/full"))
        os.write(scribe.stdout, b"still here\n")
        scribe.output.finish()
        scribe.hang_up()
        assert scribe.lines == [("stdout", "still here")]
        assert isinstance(scribe.output.log_error, OSError)

    asyncio.run(story())
