"""Adds up the rows of the labelled suite: who was named for what, what it cost, what remedies regained.

Knows nothing of how the runs were made.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

Row = dict[str, Any]
worth_naming = 0.10  # of the throughput, measured against the healthy run of the pair
wanted_regain = 0.70


def score(rows: Sequence[Row]) -> dict[str, Any]:
    """The figures of the whole suite, ready for a result file."""
    paces = healthy_paces(rows)
    faulty = [{**row, "lost": _lost(row, paces)} for row in rows if row["kind"] == "fault"]
    judged = [row for row in faulty if row["lost"] is not None and row["lost"] >= worth_naming]
    right = [row for row in judged if is_right(row)]
    well = [row for row in rows if row["kind"] == "healthy"]
    accused = [row for row in well if not is_right(row)]
    regained = list(_regained(rows, faulty, paces))
    return {
        "accuracy": {
            "runs": len(judged),
            "right": len(right),
            "share": len(right) / len(judged) if judged else None,
            "lost_at_least": worth_naming,
            "faulty_runs_in_all": len(faulty),
        },
        "healthy": {"runs": len(well), "accused": len(accused)},
        "remedies": {
            "runs": len(regained),
            "enough": sum(part["regained"] >= wanted_regain for part in regained),
            "wanted_regain": wanted_regain,
            "median": statistics.median(p["regained"] for p in regained) if regained else None,
        },
        "confusion": list(_confusion([*well, *faulty])),
        "misses": [_miss(row) for row in [*accused, *(row for row in judged if not is_right(row))]],
        "regained": regained,
        "recorded_with": dict(Counter(row.get("recorded_with", "not told") for row in rows)),
    }


def is_right(row: Row) -> bool:
    """Whether the first cause named is the true one; of a healthy run: whether no other is named at all."""
    named = row["named"]
    if row["kind"] == "healthy":
        return set(named) <= {row["truth"]["cause"]}
    return bool(named[:1] == [row["truth"]["cause"]])


def healthy_paces(rows: Iterable[Row]) -> dict[tuple[int, str], float]:
    """Tokens/s of healthy runs by seed and split; of several of one kind, the peer transport's."""
    paces: dict[tuple[int, str], float] = {}
    for row in rows:
        if row["kind"] == "healthy" and row["tokens_per_s"] and row["knobs"]["transport.preset"] == "peer":
            paces[row["seed"], row["knobs"]["pipeline.split"]] = row["tokens_per_s"]
    return paces


def _lost(row: Row, paces: dict[tuple[int, str], float]) -> float | None:
    split = row["knobs"].get("pipeline.split", "2-1")
    of_split = [pace for (_, other), pace in paces.items() if other == split]
    pair = paces.get((row["seed"], split)) or (statistics.median(of_split) if of_split else None)
    return 1 - row["tokens_per_s"] / pair if pair and row["tokens_per_s"] else None


def _confusion(rows: Sequence[Row]) -> Iterable[Row]:
    """One row a fault and strength: how often what was named first."""
    kinds = dict.fromkeys((row["fault"], row["strength"], row["truth"]["cause"]) for row in rows)
    for fault, strength, cause in kinds:
        mine = [row for row in rows if (row["fault"], row["strength"]) == (fault, strength)]
        losses = [row["lost"] for row in mine if row.get("lost") is not None]
        named = Counter(row["named"][0] if row["named"] else "nothing" for row in mine)
        yield {
            "fault": fault,
            "strength": strength,
            "cause": cause,
            "runs": len(mine),
            "right": sum(map(is_right, mine)),
            "lost": statistics.median(losses) if losses else None,
            "named_first": dict(named.most_common()),
        }


def _miss(row: Row) -> Row:
    kept = ("fault", "strength", "seed", "named", "headline", "said_of_truth")
    return {**{name: row[name] for name in kept}, "lost": row.get("lost")}


def _regained(
    rows: Sequence[Row], faulty: Sequence[Row], paces: dict[tuple[int, str], float]
) -> Iterable[Row]:
    """Of the loss of each fault that a remedy was tried on: what came back."""
    sick = {(row["fault"], row["strength"], row["seed"]): row for row in faulty}
    for row in rows:
        if row["kind"] != "remedy" or not row["tokens_per_s"]:
            continue
        before = sick[row["fault"], row["strength"], row["seed"]]
        if before["lost"] is None or before["lost"] < worth_naming:
            continue
        lost = _lost({**row, "knobs": before["knobs"]}, paces)
        assert lost is not None
        yield {
            "fault": row["fault"],
            "strength": row["strength"],
            "seed": row["seed"],
            "knobs": " ".join(f"{k}={v}" for k, v in row["knobs"].items() if before["knobs"].get(k) != v),
            "lost": before["lost"],
            "regained": 1 - lost / before["lost"],
        }
