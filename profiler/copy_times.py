"""The copies of a run by stage, path and ends, and how long stages waited for those made beside them.

A wait belongs to the batch whose copy it waited for: a drafter's wait names it; a target, which waits for
room in its send buffers, waited for the copy of its own that had just ended. Knows nothing of which matter.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

host_paths: Final = ("pageable", "pinned", "host")  # host: through host memory, of a kind that is not known
copy_columns: Final = [
    "stage", "path", "src", "dst", "copies", "bytes", "seconds", "gb_per_s",
    "target_wait_s", "drafter_wait_s",
]  # fmt: skip
_keys: Final = ["stage", "path", "src", "dst"]
_late_ns: Final = (
    5_000_000  # by which a wait may end before the span of its copy: they are told by two threads
)


def read_copies(events: pd.DataFrame, lo_ns: int, hi_ns: int) -> pd.DataFrame:
    """One row a stage, path and pair of ends, of copies that began in the range.

    `gb_per_s` is NaN where a copy's bytes are unknown. `target_wait_s`, `drafter_wait_s`: seconds that
    threads of these stages waited for copies of stage `link`; of a batch that went over several, each has its
    part.
    """
    spans = events[(events["kind"] == "span") & (events["name"] == "copy")]
    spans = spans[spans["t_ns"].between(lo_ns, hi_ns, inclusive="left")].astype(dict.fromkeys(_keys, object))
    groups = spans.groupby(_keys, observed=True)
    table = groups.agg(copies=("t_ns", "size"), seconds=("dur_ns", lambda ns: ns.sum() / 1e9)).reset_index()
    table["bytes"] = groups["bytes"].agg(lambda b: b.sum(skipna=False)).to_numpy(dtype=float)
    table["gb_per_s"] = (table["bytes"] / 1e9 / table["seconds"]).where(table["seconds"] > 0)
    waited = _waited(events, spans[(spans["stage"] == "link") & spans["batch"].notna()], lo_ns, hi_ns)
    for stage in ("target", "drafter"):
        mine = waited[waited["waiter"] == stage].groupby(_keys)["seconds"].sum()
        places = pd.MultiIndex.from_frame(table[_keys])
        table[f"{stage}_wait_s"] = mine.reindex(places, fill_value=0.0).to_numpy(dtype=float)
    return table[copy_columns]


def _waited(events: pd.DataFrame, copies: pd.DataFrame, lo_ns: int, hi_ns: int) -> pd.DataFrame:
    """Seconds of every wait, by who waited and the link it was for."""
    empty = pd.DataFrame({"waiter": [], **{key: [] for key in _keys}, "seconds": []})
    waits = events[(events["kind"] == "span") & (events["name"] == "copy_wait")]
    waits = waits[waits["t_ns"].between(lo_ns, hi_ns, inclusive="left") & waits["note"].isna()]
    if not len(waits) or not len(copies):
        return empty
    drafters = waits.loc[waits["stage"] == "drafter", ["batch", "dur_ns"]].assign(waiter="drafter")
    found = pd.concat([drafters, _of_targets(events, waits[waits["stage"] == "target"], copies)])
    joined = found.dropna(subset="batch").merge(
        copies[["batch", *_keys, "dur_ns"]], on="batch", suffixes=("", "_copy")
    )
    whole = joined.groupby(["batch", "waiter"])["dur_ns_copy"].transform("sum")
    joined["seconds"] = joined["dur_ns"] / 1e9 * (joined["dur_ns_copy"] / whole.where(whole > 0))
    return joined if len(joined) else empty


def _of_targets(events: pd.DataFrame, waits: pd.DataFrame, copies: pd.DataFrame) -> pd.DataFrame:
    """Waits of targets with the batch whose last copy ended as they did."""
    sent = events[(events["kind"] == "span") & (events["name"] == "forward") & (events["stage"] == "target")]
    senders = sent.drop_duplicates("batch").set_index("batch")["index"]
    ends = copies.assign(end_ns=copies["t_ns"] + copies["dur_ns"]).groupby("batch")["end_ns"].max()
    ended = ends.reset_index().assign(index=lambda frame: frame["batch"].map(senders)).dropna(subset="index")
    found = waits.assign(until_ns=waits["t_ns"] + waits["dur_ns"] + _late_ns)[["index", "until_ns", "dur_ns"]]
    matched = pd.merge_asof(
        found.astype({"index": np.int64, "until_ns": np.int64}).sort_values("until_ns"),
        ended.astype({"index": np.int64, "end_ns": np.int64}).sort_values("end_ns"),
        left_on="until_ns",
        right_on="end_ns",
        by="index",
    )
    return matched[["batch", "dur_ns"]].assign(waiter="target")
