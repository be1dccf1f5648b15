"""Numbers and times as people say them."""

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400


def counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def duration(seconds: float) -> str:
    """As exact as anybody needs it: 0.4 s, 12 s, 3 min 20 s, 2 h 5 min, 3 days."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    if whole < MINUTE_S:
        return f"{whole} s"
    if whole < HOUR_S:
        return _two(whole, MINUTE_S, "min", 1, "s")
    if whole < DAY_S:
        return _two(whole, HOUR_S, "h", MINUTE_S, "min")
    return counted(whole // DAY_S, "day")


def _two(whole: int, large: int, large_name: str, small: int, small_name: str) -> str:
    rest = whole % large // small
    return f"{whole // large} {large_name}" + (f" {rest} {small_name}" if rest else "")


def age(seconds: float) -> str:
    """How long ago, in one unit."""
    for unit_s, name in ((DAY_S, "day"), (HOUR_S, "h"), (MINUTE_S, "min")):
        if seconds >= unit_s:
            number = int(seconds // unit_s)
            return f"{counted(number, name) if name == 'day' else f'{number} {name}'} ago"
    return f"{max(0, int(seconds))} s ago"


def size(size_bytes: int) -> str:
    amount = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 999.5:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 99.5 else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def rate(per_s: float) -> str:
    """Things per second."""
    return f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.1f}" if per_s >= 1 else f"{per_s:.2g}"
