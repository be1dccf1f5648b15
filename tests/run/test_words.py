"""Numbers and times as people say them."""

from __future__ import annotations

import pytest

from outlast.run.words import age, counted, duration, rate, size


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-1, "0.0 s"),
        (0.44, "0.4 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (86400, "1 day"),
        (300000, "3 days"),
    ],
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_ages_sizes_rates_and_counts() -> None:
    assert [age(s) for s in (-3, 5, 61, 7300, 90000, 200000)] == [
        "0 s ago",
        "5 s ago",
        "1 min ago",
        "2 h ago",
        "1 day ago",
        "2 days ago",
    ]
    assert [size(n) for n in (0, 999, 1000, 18_240, 999_999, 2_500_000, 10**13)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "18.2 kB",
        "1.0 MB",
        "2.5 MB",
        "10.0 TB",
    ]
    assert [rate(n) for n in (25464.3, 12.3, 3.14159, 0.0123)] == ["25,464", "12", "3.1", "0.012"]
    assert (counted(1, "fault"), counted(1500, "step")) == ("1 fault", "1,500 steps")
