"""Some GPUs copy to host memory far more slowly than their siblings: their buffers lie on another node."""

from __future__ import annotations

from typing import Final

from profiler.capacity import Loads, measure_loads
from profiler.finding import Finding, Remedy
from profiler.rules.uneven_copies import UnevenCopies, compare, uneven_factor
from profiler.rules.verdicts import Case, Check, compared_cost_share, judge, quantity, share, unjudged
from profiler.timeline import Timeline

cause: Final = "numa-remote-host-buffers"


def cost(timeline: Timeline, loads: Loads) -> float | None:
    """What slow copies cost. Where only rates are known and not whose time: at most all staging."""
    return _cost_of(compare(timeline), loads)


def check(timeline: Timeline) -> list[Finding]:
    """Supported when equal GPUs copy at clearly different rates and staging costs the targets time."""
    loads = measure_loads(timeline)
    if loads is None:
        return [unjudged(cause, timeline)]
    found = compare(timeline)
    nodes = None if timeline.emulated else timeline.memory_nodes
    factor = 1.0 if found.factor is None else found.factor
    slow = ", ".join(sorted(found.slow)) or "none"
    case = Case(
        cause=cause,
        summary=f"Some GPUs ({slow}) copy to host memory {factor:.1f} times more slowly than others",
        cost=_cost_of(found, loads),
        cost_reason="rates of copies to host memory are not known of two GPUs",
        least_cost=compared_cost_share,
        checks=[
            Check(found.is_uneven, f"all GPUs copy alike (within a factor of {uneven_factor})"),
            Check(
                None if nodes is None and not timeline.emulated else nodes != 1,
                "the host has one memory node",
            ),
            Check(not loads.drafters_limit, "the drafters hold the targets up, not the other way round"),
        ],
        evidence=[
            *(quantity(f"copies of {name}", rate, "GB/s") for name, rate in sorted(found.rates.items())),
            share("targets packing and staging", _staging(loads)),
            share("targets working", loads.target.busy - loads.target.gather),
            quantity(
                "memory nodes of the host",
                None if timeline.memory_nodes is None else float(timeline.memory_nodes),
                "",
                "the run does not say",
            ),
        ],
        remedy=Remedy(
            "Allocate each GPU's staging buffer on the memory node that GPU hangs on: bind the stage's "
            "thread to that node's CPUs before it allocates (a process: numactl --cpunodebind --membind), or "
            "copy between devices (transport.preset=peer)."
        ),
        condition="the slow GPUs hang on another node; else look at their PCIe links' width (nvidia-smi -q)",
    )
    return [judge(case, timeline)]


def _staging(loads: Loads) -> float:
    target = loads.target
    return target.gather + target.host_copies + target.copy_wait + target.unaccounted


def _cost_of(found: UnevenCopies, loads: Loads) -> float | None:
    if not found.rates:
        return None
    if not found.is_uneven:
        return 0.0
    if found.from_spans:
        return loads.lost_share(target=loads.target.host_copies * found.excess_share)
    return loads.lost_share(target=_staging(loads))
