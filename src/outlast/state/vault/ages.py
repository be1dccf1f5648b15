"""How long ago something was saved, for people."""

from __future__ import annotations

from datetime import UTC, datetime


def age_text(saved_at: str) -> str:
    """By two machines' clocks, so only ever for people."""
    try:
        age_s = (datetime.now(UTC) - datetime.fromisoformat(saved_at)).total_seconds()
    except (ValueError, TypeError):
        return "?"
    for unit, size_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if age_s >= size_s:
            return f"{age_s / size_s:.0f} {unit}"
    return f"{max(0.0, age_s):.0f} s"
