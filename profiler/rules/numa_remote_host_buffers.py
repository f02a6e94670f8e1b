"""Some GPUs' copies to or from host memory are far slower than their siblings': buffers on another node."""

from __future__ import annotations

from typing import Final

from profiler.capacity import Loads, measure_loads
from profiler.finding import Finding, Remedy
from profiler.rules.uneven_copies import (
    Link,
    LinkGroup,
    host_groups,
    lost_to,
    on_another_node,
    uneven,
    uneven_factor,
)
from profiler.rules.verdicts import (
    Case,
    Check,
    amount,
    compared_cost_share,
    judge,
    quantity,
    seconds,
    share,
    unjudged,
)
from profiler.timeline import Timeline

cause: Final = "numa-remote-host-buffers"
_one_node: Final = "the host has one memory node"
_same_node: Final = "the slow GPUs hang on the same memory node as the fastest"


def cost(timeline: Timeline, loads: Loads) -> float | None:
    """What slow copies cost. Where only rates are known and not whose time: at most all staging."""
    groups = host_groups(timeline)
    if not groups:
        return None
    suspected = _suspected(timeline, groups)
    if any(group.told_only for group in suspected):
        return loads.lost_share(target=_staging(loads))
    return lost_to(suspected, timeline, loads)


def check(timeline: Timeline) -> list[Finding]:
    """Supported when equal GPUs copy at clearly different rates and that costs the stages time."""
    loads = measure_loads(timeline)
    if loads is None:
        return [unjudged(cause, timeline)]
    groups = host_groups(timeline)
    slow = _suspected(timeline, groups) or uneven(groups)
    worst = max(slow or groups, key=lambda group: group.factor, default=None)
    nodes = None if worst is None or not slow else on_another_node(timeline, worst)
    case = Case(
        cause=cause,
        summary="" if worst is None else _describe(worst),
        cost=lost_to(slow, timeline, loads) if nodes is False else cost(timeline, loads),
        cost_reason="rates of copies to or from host memory are not known of two GPUs",
        least_cost=compared_cost_share,
        checks=[
            Check(bool(slow), f"all GPUs copy alike (within a factor of {uneven_factor})"),
            Check(nodes, _one_node if timeline.memory_nodes == 1 else _same_node),
            Check(
                not (worst is not None and worst.told_only and loads.drafters_limit),
                "the drafters hold the targets up, not the other way round",
            ),
        ],
        evidence=[
            *(quantity(f"copies of {link.name}", link.gb_per_s, "GB/s") for link in _by_name(worst)),
            seconds("a slow copy takes longer by", worst.extra_s if worst else None, "no copies were timed"),
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
        predicted_cost_s=worst.extra_s if worst is not None and slow else None,
        predicted_cost_reason="no slow copies were timed",
    )
    return [judge(case, timeline)]


def _suspected(timeline: Timeline, groups: tuple[LinkGroup, ...]) -> tuple[LinkGroup, ...]:
    """Uneven groups that memory nodes can explain."""
    return tuple(group for group in uneven(groups) if on_another_node(timeline, group) is not False)


def _describe(group: LinkGroup) -> str:
    names = ", ".join(sorted(link.name for link in group.slow)) or "none"
    direction = "to" if group.way == "down" else "from"
    rates = f"{amount(1e9 * group.slow[0].gb_per_s, 'B/s')} against " if group.slow else ""
    best = amount(1e9 * group.fastest.gb_per_s, "B/s")
    return (
        f"Some GPUs ({names}) copy {direction} host memory {group.factor:.1f} times more slowly than others "
        f"({rates}{best})"
    )


def _by_name(group: LinkGroup | None) -> list[Link]:
    return [] if group is None else sorted(group.links, key=lambda link: link.name)


def _staging(loads: Loads) -> float:
    target = loads.target
    return target.gather + target.host_copies + target.copy_wait
