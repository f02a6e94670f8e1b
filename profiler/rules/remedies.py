"""Knobs that a remedy sets, computed from the run's own configuration, and arithmetic on its links.

Every set of knobs handed out is one that the configuration accepts. Knows nothing of verdicts.
"""

from __future__ import annotations

from dflash.contract.errors import ConfigError
from profiler.capacity import Loads
from profiler.finding import Scalar
from profiler.timeline import Timeline

few_items = 2  # queue depth that hides a copy behind the next forward
_speed_knobs = {
    "pageable": "devices.pageable_gigabytes_per_s",
    "pinned": "devices.pinned_gigabytes_per_s",
    "peer": "devices.link_gigabytes_per_s",
}


def peer_transport(timeline: Timeline) -> dict[str, Scalar]:
    """Knobs for one short queue per drafter, filled by copies between devices; none for others' trainers."""
    values = timeline.config_values
    if not values:
        return {}
    knobs: dict[str, Scalar] = {"transport.preset": "auto" if _slower_by_peer(timeline) else "peer"}
    for part in ("queue", "path", "dispatch"):
        if values.get(f"transport.{part}", "preset") != "preset":
            knobs[f"transport.{part}"] = "preset"
    depth = values.get("transport.depth")
    if isinstance(depth, int) and depth > few_items:
        knobs["transport.depth"] = few_items
    return knobs


def fastest_ways(timeline: Timeline) -> dict[str, Scalar]:
    """Knobs for the transport that chooses a way for each pair, where the run had chosen one for all."""
    config = timeline.config
    if config is None or config.transport_choice.path not in ("peer", "pinned"):
        return {}
    values = timeline.config_values
    own = {f"transport.{part}": "preset" for part in ("queue", "path", "dispatch")}
    reset: dict[str, Scalar] = {k: v for k, v in own.items() if values.get(k, "preset") != "preset"}
    return {"transport.preset": "auto", **reset}


def _slower_by_peer(timeline: Timeline) -> bool:
    """Whether logical devices are declared to reach each other faster through pinned host memory."""
    if timeline.config is None or not timeline.emulated:
        return False
    devices = timeline.config.devices
    through_host = devices.pinned_gigabytes_per_s / 2  # down and up, one after the other
    return devices.link_gigabytes_per_s < through_host


def moved_device(
    timeline: Timeline, loads: Loads, *, to_drafters: int
) -> tuple[dict[str, Scalar], float | None]:
    """The split with a device moved (+1: target to drafter, -1: back), and tokens/s its stages would allow.

    Knobs are empty where that split is not possible, or where roles share devices, so that there is none to
    move; the rate is None where a stage's own is unknown. It is
    an upper bound by proportion: it knows nothing of links, memory or waits.
    """
    config = timeline.config
    if config is None:
        return {}, None
    split = config.split
    if config.device_count < split.targets + split.drafters:
        return {}, None
    knobs: dict[str, Scalar] = {
        "pipeline.split": f"{split.targets - to_drafters}-{split.drafters + to_drafters}"
    }
    try:
        config.replacing(knobs)
    except ConfigError:  # no device would be left, or a window is too small for so many drafters
        return {}, None
    return knobs, moved_device_rate(loads, to_drafters=to_drafters)


def moved_device_rate(loads: Loads, *, to_drafters: int) -> float | None:
    """Tokens/s that the stages would allow with a device moved; None where that is not possible or known."""
    target, drafter = loads.target, loads.drafter
    targets, drafters = target.threads - to_drafters, drafter.threads + to_drafters
    if min(targets, drafters) < 1 or target.alone_tokens_per_s is None or drafter.alone_tokens_per_s is None:
        return None
    return min(
        target.alone_tokens_per_s * targets / target.threads,
        drafter.alone_tokens_per_s * drafters / drafter.threads,
    )


def declared_copy_s(
    timeline: Timeline, stage: str, paths: tuple[str, ...]
) -> tuple[float | None, str | None]:
    """Seconds that one of a stage's copies should take at the declared link speed, or why that is unknown."""
    copies = timeline.copies
    mine = copies[(copies["stage"] == stage) & copies["path"].isin(paths) & copies["bytes"].notna()]
    if not len(mine):
        return None, f"no copies of the {stage} stage with bytes were recorded"
    if not timeline.emulated:
        return None, "the speed of the link was not measured apart from these copies"
    total_s = 0.0
    for path, size in mine[["path", "bytes"]].itertuples(index=False):
        speed = timeline.config_values.get(_speed_knobs[path])
        if not isinstance(speed, int | float) or speed <= 0:
            return None, f"the run does not say how fast {path} links are"
        total_s += size / (speed * 1e9)
    return total_s / float(mine["copies"].sum()), None


def copy_rate(timeline: Timeline, stage: str, paths: tuple[str, ...]) -> tuple[float | None, float | None]:
    """Measured seconds and GB/s of one of a stage's own copies; None when there are none, or no bytes."""
    mine = timeline.copies[(timeline.copies["stage"] == stage) & timeline.copies["path"].isin(paths)]
    count, total_s, size = (float(mine[c].sum(skipna=False)) for c in ("copies", "seconds", "bytes"))
    if not count:
        return None, None
    known = size == size and total_s > 0
    return total_s / count, size / 1e9 / total_s if known else None


def item_bytes(timeline: Timeline) -> float | None:
    """Mean bytes of one batch of hidden states: from takes, else from copies."""
    for frame, count in ((timeline.takes, "takes"), (timeline.copies, "copies")):
        known = frame[frame["bytes"].notna() & (frame["bytes"] > 0)]
        if len(known):
            return float(known["bytes"].sum() / known[count].sum())
    return None
