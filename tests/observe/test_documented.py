"""docs/events.md says what is written, and what is checked: all of it, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from outlast.observe.promises import PROMISES
from outlast.observe.written import VERSION, Written
from outlast.protocol import events

TEXT = (Path(__file__).parents[2] / "docs" / "events.md").read_text()
KINDS = {kind.__struct_config__.tag: kind for kind in get_args(events.AnyEvent)}


def table(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    part = TEXT.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line for line in part.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


def named(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def test_the_envelope_is_documented() -> None:
    assert [named(row[0])[0] for row in table("The line")] == list(Written.__struct_fields__)
    assert table("The line")[0][1].startswith(f"{VERSION}.")


def test_every_kind_is_documented_with_its_fields() -> None:
    documented = {named(row[0])[0]: named(row[1]) for row in table("Kinds")}
    assert documented == {tag: list(kind.__struct_fields__) for tag, kind in KINDS.items()}


def test_kinds_are_told_apart_by_short_tags() -> None:
    assert len(KINDS) == len(get_args(events.AnyEvent))
    assert all(isinstance(tag, str) and re.fullmatch(r"[a-z]+(_[a-z]+)*", tag) for tag in KINDS)
    assert {events.WentBack: "went_back", events.View: "view"}.items() <= {
        kind: tag for tag, kind in KINDS.items()
    }.items()


def test_every_promise_is_listed() -> None:
    lines = TEXT.split("## Promises")[1].splitlines()
    listed = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
    assert listed == [(promise.__doc__ or "").splitlines()[0] for promise in PROMISES]
