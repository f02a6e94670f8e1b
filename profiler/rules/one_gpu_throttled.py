"""One GPU runs at a lower clock than its siblings because something holds it down: heat, power, a brake.

It looks as busy as the others, so utilisation hides it; clock, reason, temperature and power show it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pandas as pd

from profiler.capacity import Loads, measure_loads
from profiler.finding import Evidence, Finding, Remedy
from profiler.rules.verdicts import Case, Check, compared_cost_share, judge, percent, quantity, share
from profiler.throughput import measure_throughput
from profiler.timeline import Timeline

cause: Final = "one-gpu-throttled"
slow_clock_share: Final = 0.85  # of the siblings' clock: below it a GPU is slower than chance
hotter_c: Final = 10.0  # than its siblings: more than places in a case differ by
_working_util_pct: Final = 50.0  # a GPU without work lowers its clock by itself
_unpriced: Final = "a clock's price is measured between equal GPUs, not worked out from bytes"


@dataclass(frozen=True, slots=True)
class Straggler:
    """A GPU well below its siblings' clock; rows of `Timeline.gpus`."""

    gpu: Mapping[str, Any]
    siblings: pd.DataFrame

    @property
    def clock_share(self) -> float:
        """Its clock over theirs."""
        return float(self.gpu["sm_clock_mhz"] / self.siblings["sm_clock_mhz"].median())


def check(timeline: Timeline) -> list[Finding]:
    """Supported when a working GPU is held well below its siblings' clock, and that costs throughput."""
    found = find_straggler(timeline.gpus)
    if found is None and timeline.emulated and (slow := _slow_device(timeline)) is not None:
        return [judge(_emulated_case(timeline, *slow), timeline)]
    if found is None:
        known = _has_siblings(timeline.gpus)
        reason = (
            "logical devices have no clocks"
            if timeline.emulated
            else "no clocks were read of two GPUs of one model with work"
        )
        return [judge(_case(cost=0.0 if known else None, cost_reason=reason), timeline)]
    loads = measure_loads(timeline)
    lost = None if loads is None else cost(timeline, loads)
    lost_rate = _lost_tokens_per_s(timeline, lost)
    words = _describe(found) + ("" if lost_rate is None else f"; about {lost_rate:.3g} tokens/s")
    reason = "the run does not say what this GPU does, or how fast its stage is"
    case = _case(cost=lost, cost_reason=reason, found=found, summary=words, lost_rate=lost_rate)
    finding = judge(case, timeline)
    if finding.verdict == "not_enough_evidence":
        finding = replace(finding, summary=f"{words}. {finding.summary}")
    return [finding]


def find_straggler(gpus: pd.DataFrame) -> Straggler | None:
    """The slowest working GPU that is well below others of its model, of its role where there are some."""
    rivals = _comparable(gpus)
    rows: list[Any] = rivals.to_dict("records")
    found = [Straggler(gpu, siblings) for gpu in rows if len(siblings := _siblings(gpu, rivals))]
    slow = [straggler for straggler in found if straggler.clock_share < slow_clock_share]
    return min(slow, key=lambda straggler: straggler.clock_share, default=None)


def cost(timeline: Timeline, loads: Loads) -> float | None:
    """The share of the throughput lost to a straggler's clock. None without one, or where it has no price."""
    if timeline.emulated:
        slow = _slow_device(timeline)
        return None if slow is None else _emulated_cost(loads, *slow)
    found = find_straggler(timeline.gpus)
    if found is None or found.gpu["role"] not in ("target", "drafter"):
        return None
    role = found.gpu["role"]
    service = timeline.service[timeline.service["stage"] == role]
    paces = {
        int(row["index"]): 1 / row["s_per_token"]
        for row in service.to_dict("records")
        if row["s_per_token"] > 0
    }
    mine = paces.pop(int(found.gpu["index"]), None)
    if mine is None:
        return None
    # Without a pace of a sibling's own (none, or one figure for all in the file), a GPU's follows its clock.
    told = [pace for pace in paces.values() if pace != mine]
    if paces and not told:
        total = mine * (1 + len(paces))
        even = total / (found.clock_share + len(paces))
        paces, mine = dict.fromkeys(paces, even), even * found.clock_share
    equal = float(np.median(list(paces.values()))) if paces else mine / found.clock_share
    total = mine + sum(paces.values())
    saved = max(1 - total / (total - mine + equal), 0.0)
    load = loads.target if role == "target" else loads.drafter
    return loads.lost_share(**{role: load.occupied * saved})


def _slow_device(timeline: Timeline) -> tuple[str, int, float] | None:
    """The logical device furthest below its siblings' pace: role, index, its pace over their median.

    Logical devices have no clock; what shows of one is how long they take for a token.
    """
    found: list[tuple[str, int, float]] = []
    for role in ("target", "drafter"):
        service = timeline.service[
            (timeline.service["stage"] == role) & (timeline.service["s_per_token"] > 0)
        ]
        takes = {int(row["index"]): float(row["s_per_token"]) for row in service.to_dict("records")}
        for index, mine in takes.items():
            others = [theirs for other, theirs in takes.items() if other != index]
            if others and (pace := float(np.median(others)) / mine) < slow_clock_share:
                found.append((role, index, pace))
    return min(found, key=lambda device: device[2], default=None)


def _emulated_cost(loads: Loads, role: str, _index: int, pace: float) -> float | None:
    load = loads.target if role == "target" else loads.drafter
    saved = (1 - pace) / load.threads  # of what all of them would do at the siblings' pace
    return loads.lost_share(**{role: load.occupied * saved})


def _emulated_case(timeline: Timeline, role: str, index: int, pace: float) -> Case:
    loads = measure_loads(timeline)
    words = f"{role} {index} computes at {percent(pace)} of its siblings' pace"
    return Case(
        cause=cause,
        summary=words,
        cost=None if loads is None else _emulated_cost(loads, role, index, pace),
        cost_reason="a stage left no spans",
        evidence=[share("its pace, of its siblings'", pace)],
        remedy=Remedy(
            "Look for what slows that device: a throttled GPU by its clock and temperature, a neighbour that "
            "uses it too. Until then leave it out, or give it the stage that is not the limit."
        ),
        condition="the device can be relieved, or another put in its place",
        predicted_cost_reason=_unpriced,
    )


def _case(
    *,
    cost: float | None,
    cost_reason: str,
    found: Straggler | None = None,
    summary: str = "",
    lost_rate: float | None = None,
) -> Case:
    held = None if found is None else found.gpu["throttled"]
    return Case(
        cause=cause,
        summary=summary,
        cost=cost,
        cost_reason=cost_reason,
        least_cost=compared_cost_share,
        checks=[]
        if found is None
        else [
            Check(
                None if held is None or (not held and _is_hot(found)) else bool(held),
                "the driver names nothing that holds its clock down, and it is no hotter than the others",
            )
        ],
        evidence=[] if found is None else _evidence(found, lost_rate),
        remedy=Remedy(
            "Look after that GPU: airflow and dust for heat, the power limit for power (nvidia-smi -q -d "
            "PERFORMANCE). Until then leave it out (CUDA_VISIBLE_DEVICES), or give it the stage that is not "
            "the limit."
        ),
        condition="the GPU can be cooled, its limit raised, or another put in its place",
        predicted_cost_reason=_unpriced,
    )


def _is_hot(found: Straggler | None) -> bool:
    """Whether it is clearly hotter than its siblings, which a driver that names no reason leaves to see."""
    if found is None:
        return False
    return float(found.gpu["temp_c"]) >= float(found.siblings["temp_c"].median()) + hotter_c


def _evidence(found: Straggler, lost_rate: float | None) -> list[Evidence | None]:
    gpu, others = found.gpu, found.siblings
    return [
        _measured("its SM clock", gpu["sm_clock_mhz"], "MHz"),
        _measured("its siblings' SM clock", others["sm_clock_mhz"].median(), "MHz"),
        _measured("its temperature", gpu["temp_c"], "°C"),
        _measured("its power", gpu["power_w"], "W", of=gpu["power_limit_w"]),
        _measured(
            "its siblings' power", others["power_w"].median(), "W", of=others["power_limit_w"].median()
        ),
        quantity("tokens/s lost", lost_rate, "tokens/s", "the throughput or the cost is unknown"),
        share("its utilisation, which hides it", _known(gpu["util_pct"] / 100), "not read"),
    ]


def _describe(found: Straggler) -> str:
    gpu, others = found.gpu, found.siblings
    held = gpu["throttled"]
    why = "reason unknown" if held is None else held or "no reason given"
    parts = [f"{gpu['sm_clock_mhz']:.0f} MHz", why]
    if _known(gpu["temp_c"]) is not None:
        parts.append(f"{gpu['temp_c']:.0f} °C")
    if _known(gpu["power_w"]) is not None:
        parts.append(_watts(gpu["power_w"], gpu["power_limit_w"]))
    theirs = f"{others['sm_clock_mhz'].median():.0f} MHz"
    if _known(others["power_w"].median()) is not None:
        theirs += f" and {others['power_w'].median():.0f} W"
    return f"{gpu['label']} is held down ({', '.join(parts)}) while its siblings run at {theirs}"


def _comparable(gpus: pd.DataFrame) -> pd.DataFrame:
    """GPUs with a clock and with work, as far as utilisation tells."""
    works = ~(gpus["util_pct"].astype(float) < _working_util_pct)
    return gpus.loc[gpus["sm_clock_mhz"].astype(float).notna() & works & ~gpus["mig"].astype(bool)]


def _siblings(gpu: Mapping[str, Any], rivals: pd.DataFrame) -> pd.DataFrame:
    same = rivals[(rivals["model"] == gpu["model"]) & (rivals["key"] != gpu["key"])]
    of_role: pd.DataFrame = same[same["role"] == gpu["role"]]
    return of_role if len(of_role) else same


def _has_siblings(gpus: pd.DataFrame) -> bool:
    rivals = _comparable(gpus)
    return bool(rivals["model"].duplicated().any())


def _lost_tokens_per_s(timeline: Timeline, lost: float | None) -> float | None:
    now = measure_throughput(timeline).tokens_per_s
    return None if now is None or lost is None or lost >= 1 else now * lost / (1 - lost)


def _measured(name: str, value: float, unit: str, *, of: float | None = None) -> Evidence:
    known = _known(value)
    if known is None:
        return Evidence(name, None, unit, "n/a: not read", "not read")
    return Evidence(name, known, unit, f"{known:.0f} {unit}" if of is None else _watts(known, of))


def _watts(value: float, limit: float) -> str:
    return f"{value:.0f} of {limit:.0f} W" if _known(limit) is not None else f"{value:.0f} W"


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
