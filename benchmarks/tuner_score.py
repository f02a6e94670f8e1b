"""Adds up the rows of a tuning contest: how soon what is recommended is good, and what it cost.

A configuration is good when it is within 2 % of the best one that cannot run out of memory; one that can is
worth 0. Knows nothing of tuners or problems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, median
from typing import Any, Final

Row = Mapping[str, Any]
good_worth: Final = 0.98
regret_at: Final = (5, 10, 20, 40, 60)


def score(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One entry for each set and tuner, in the order in which they come up."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["set"], row["tuner"]), []).append(row)
    return [{"set": name, "tuner": tuner, **add_up(mine)} for (name, tuner), mine in groups.items()]


def add_up(rows: Sequence[Row]) -> dict[str, Any]:
    """The figures of one tuner on one set. Trials are None where they would be more than were made."""
    most = max(row["trials"] for row in rows)
    firsts = [trials_until_good(row["worth"]) or most + 1 for row in rows]
    made = sum(row["made"] for row in rows)
    return {
        "problems": len(rows),
        "trials_median": within(quantile(firsts, 0.5), most),
        "trials_p90": within(quantile(firsts, 0.9), most),
        "good_at_end": mean(row["worth"][-1] >= good_worth for row in rows),
        "regret": {str(at): mean(1 - row["worth"][at - 1] for row in rows) for at in regret_at if at <= most},
        "failed_share": sum(row["failed"] for row in rows) / made,
        "repeated_share": sum(row["repeated"] for row in rows) / made,
        "paired_share": sum(row["paired"] for row in rows) / made,
        "recommended_by": rows[0]["by"],
        "seconds_a_trial": sum(row["seconds"] for row in rows) / made,
        **_stops(rows),
        **_model(rows),
    }


def shorten(row: Row) -> dict[str, Any]:
    """A row for the document: the worth at some trials for that after each."""
    worth = row["worth"]
    kept = {name: value for name, value in row.items() if name not in ("worth", "by")}
    shown = {str(at): worth[at - 1] for at in regret_at if at <= row["trials"]}
    return {**kept, "good_after": trials_until_good(worth), "worth_at": shown}


def trials_until_good(worth: Sequence[float]) -> int | None:
    """The first trial after which the recommended configuration is good."""
    return next((number for number, each in enumerate(worth, 1) if each >= good_worth), None)


def quantile(numbers: Sequence[int], share: float) -> int:
    """The smallest of them that at least this share does not exceed."""
    ordered = sorted(numbers)
    needed = next(count for count in range(1, len(ordered) + 1) if count >= share * len(ordered) - 1e-9)
    return ordered[needed - 1]


def within(number: int, most: int) -> int | None:
    """None for more than `most`."""
    return number if number <= most else None


def _stops(rows: Sequence[Row]) -> dict[str, Any]:
    """How searches that stop by themselves have stood then."""
    stopped = [row for row in rows if row.get("stopped") is not None]
    if not stopped:
        return {}
    worth = [row["worth"][row["stopped"] - 1] for row in stopped]
    return {
        "stopped_share": len(stopped) / len(rows),
        "stopped_median": median(row["stopped"] for row in stopped),
        "stopped_regret": mean(1 - each for each in worth),
        "stopped_covered": mean(each >= good_worth for each in worth),
    }


def _model(rows: Sequence[Row]) -> dict[str, Any]:
    """How wrong a model was: of rates in the median problem, of memory over all."""
    errors = [row["two_run_error"] for row in rows if "two_run_error" in row]
    shares = {
        name: mean(row[name] for row in rows if name in row)
        for name in ("missed_memory", "pruned_memory")
        if any(name in row for row in rows)
    }
    return {**({"two_run_error": median(errors)} if errors else {}), **shares}
