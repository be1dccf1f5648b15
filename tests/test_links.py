"""The documents lead where they say: relative links, pictures and the headings that are pointed at exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def text_of(document: Path) -> str:
    return CODE.sub("", document.read_text())


def anchors(document: Path) -> set[str]:
    """The names by which GitHub finds a document's headings."""
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(text_of(document)))
    return {heading.strip().replace(" ", "-") for heading in kept}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_relative_links_lead_somewhere(document: Path) -> None:
    dead = []
    for link in LINK.findall(text_of(document)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert not dead
