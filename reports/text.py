"""Numbers as people read them: rates, shares, times and sizes with their units, "n/a: why" for the unknown.

Knows nothing of runs, pages or charts.
"""

from __future__ import annotations

import math
from typing import Final

nbsp: Final = "\u00a0"  # keeps a number and its unit on one line
interval: Final = f"90{nbsp}% interval"  # what all intervals of the product are
_minute_s: Final = 60
_hour_s: Final = 3600
_day_s: Final = 86400


def missing(reason: str | None = None) -> str:
    """What stands where a number would: never 0, and the reason when it is known."""
    return f"n/a: {reason}" if reason else "n/a"


def is_known(value: float | None) -> bool:
    """True for a finite number."""
    return value is not None and math.isfinite(value)


def significant(value: float, digits: int = 3) -> str:
    """`value` to `digits` significant figures, thousands grouped, without exponent: 14.8, 1,230, 0.042."""
    if value == 0:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, decimals)
    if rounded != 0:  # 9.996 rounds to 10.0, which has one digit more
        decimals = digits - 1 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{max(0, decimals)}f}"


def rate(tokens_per_s: float | None, reason: str | None = None) -> str:
    """Tokens a second: `812 tok/s`, `14.8 Ktok/s`."""
    if tokens_per_s is None or not math.isfinite(tokens_per_s):
        return missing(reason)
    number, unit = _scaled_rate(tokens_per_s, tokens_per_s)
    return f"{number}{nbsp}{unit}"


def rate_range(low: float | None, high: float | None) -> str:
    """An interval of tokens a second in one unit: `14.5 to 15.1 Ktok/s`."""
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return missing()
    (first, unit), (last, _) = _scaled_rate(low, high), _scaled_rate(high, high)
    return f"{first} to {last}{nbsp}{unit}"


def _scaled_rate(value: float, scale: float) -> tuple[str, str]:
    if abs(scale) >= 1000:
        return significant(value / 1000), "Ktok/s"
    return significant(value), "tok/s"


def share(fraction: float | None, reason: str | None = None) -> str:
    """A fraction of one as per cent: `93 %`, `0.4 %`."""
    if fraction is None or not math.isfinite(fraction):
        return missing(reason)
    percent = 100 * fraction
    if 0 < abs(percent) < 0.1:
        return f"<0.1{nbsp}%"
    digits = 1 if abs(percent) < 10 and round(percent, 1) != round(percent) else 0
    return f"{percent:.{digits}f}{nbsp}%"


def duration(seconds: float | None, reason: str | None = None) -> str:
    """A time in the unit that fits: `45 µs`, `320 ms`, `1.9 s`, `3 min 20 s`, `2 h 5 min`, `8.8 days`."""
    if seconds is None or not math.isfinite(seconds):
        return missing(reason)
    size = abs(seconds)
    if size == 0:
        return f"0{nbsp}s"
    if size < 0.9995e-3:  # from there on it would round to 1,000
        return f"{significant(seconds * 1e6)}{nbsp}µs"
    if size < 0.9995:
        return f"{significant(seconds * 1e3)}{nbsp}ms"
    if size < 2 * _minute_s:
        return f"{significant(seconds)}{nbsp}s"
    whole = round(seconds)
    if size < 2 * _hour_s:
        return f"{whole // _minute_s}{nbsp}min {whole % _minute_s}{nbsp}s"
    if size < 2 * _day_s:
        return f"{whole // _hour_s}{nbsp}h {whole % _hour_s // _minute_s}{nbsp}min"
    return f"{significant(seconds / _day_s)}{nbsp}days"


def short_duration(seconds: float | None) -> str:
    """The same in one number, for narrow places: `13 min`, `2.1 h`."""
    if (
        seconds is None
        or not math.isfinite(seconds)
        or abs(seconds) < 2 * _minute_s
        or abs(seconds) >= 2 * _day_s
    ):
        return duration(seconds)
    if abs(seconds) < 2 * _hour_s:
        return f"{significant(seconds / _minute_s, 2)}{nbsp}min"
    return f"{significant(seconds / _hour_s, 2)}{nbsp}h"


def data_size(count: float | None, reason: str | None = None) -> str:
    """Bytes in decimal units, as links and cards are sold: `2.5 GB`."""
    if count is None or not math.isfinite(count):
        return missing(reason)
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{significant(value)}{nbsp}{unit}"
        value /= 1000
    return f"{significant(value)}{nbsp}TB"


def count_of(count: int, noun: str, plural: str | None = None) -> str:
    """`1 window`, `12 windows`."""
    return f"{count:,}{nbsp}{noun if count == 1 else plural or noun + 's'}"


def joined(parts: list[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} {last} {parts[-1]}"
