"""What measured links mean, in sentences: corruption, slow or missing peer access, islands, far sockets.

Pure. Knows nothing of how links are measured or what is done about them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final

from dflash.contract.link_facts import LinkEdge, LinkFacts, host

uneven_ratio: Final = 1.5  # between the fastest and the slowest GPU on one path and in one direction
slow_peer_ratio: Final = 0.9  # of the way through host memory


def judge_links(facts: LinkFacts) -> LinkFacts:
    """The same facts with their findings, the gravest first."""
    found = (*_corrupt(facts), *_slow_peers(facts), *_islands(facts), *_uneven(facts))
    return dataclasses.replace(facts, findings=found)


def _corrupt(facts: LinkFacts) -> Iterator[str]:
    iommu = {
        True: "the IOMMU is on here",
        False: "the IOMMU is off here",
        None: "whether it is on is unknown",
    }
    for edge in facts.corrupt:
        yield (
            f"{_name(edge)}: {edge.wrong_words} of {edge.words} words arrived wrong. Do not train over it; "
            f"IOMMU or ACS settings are the usual cause of wrong peer copies ({iommu[facts.iommu]})"
        )


def _slow_peers(facts: LinkFacts) -> Iterator[str]:
    for edge in facts.edges:
        staged = facts.staged_gb_per_s(edge.src, edge.dst) if edge.path == "peer" else None
        if edge.gb_per_s is not None and staged is not None and edge.gb_per_s < slow_peer_ratio * staged:
            yield (
                f"{_name(edge)}: {edge.gb_per_s:.3g} GB/s is slower than the way through pinned host memory, "
                f"{staged:.3g} GB/s"
            )


def _islands(facts: LinkFacts) -> Iterator[str]:
    """Which devices reach each other, where not all do."""
    lacking = [edge for edge in facts.edges if edge.peer_access is False]
    if not lacking:
        return
    islands: list[list[str]] = []
    for device in facts.devices:
        for island in islands:
            if all(_reach(facts, device.name, other) for other in island):
                island.append(device.name)
                break
        else:
            islands.append([device.name])
    if len(islands) == len(facts.devices):
        yield "no GPU has peer access to another: copies between them go through host memory"
        return
    yield (
        f"peer access only within {' | '.join(' '.join(island) for island in islands)}: a split that keeps "
        "each target with a drafter of its own island avoids the way through host memory"
    )


def _reach(facts: LinkFacts, one: str, other: str) -> bool:
    ways = (facts.edge(one, other, "peer"), facts.edge(other, one, "peer"))
    return all(way is not None and way.peer_access is not False for way in ways)


def _uneven(facts: LinkFacts) -> Iterator[str]:
    if facts.emulated:
        return  # declared alike: a difference is this CPU's load
    for path in ("pinned", "pageable"):
        for src_is_host in (True, False):
            edges = [
                e for e in facts.edges if e.path == path and (e.src == host) == src_is_host and e.gb_per_s
            ]
            speeds = {edge.dst if src_is_host else edge.src: edge for edge in edges}
            if len(speeds) < 2:
                continue
            slow = min(speeds, key=lambda name: speeds[name].gb_per_s or 0.0)
            fast = max(speeds, key=lambda name: speeds[name].gb_per_s or 0.0)
            ratio = (speeds[fast].gb_per_s or 0.0) / (speeds[slow].gb_per_s or 1.0)
            if ratio > uneven_ratio:
                direction = "from host memory" if src_is_host else "to host memory"
                told = f"{_told(facts, speeds[fast], fast)}, {_told(facts, speeds[slow], slow)}"
                why = _explain(facts, speeds[fast], fast, slow)
                yield f"{path} copies {direction} are uneven, {ratio:.1f} times: {told}. {why}"


def _told(facts: LinkFacts, edge: LinkEdge, name: str) -> str:
    node = facts.device(name).numa_node
    return f"{name} (NUMA node {'unknown' if node is None else node}) {edge.gb_per_s:.3g} GB/s"


def _explain(facts: LinkFacts, edge: LinkEdge, fast: str, slow: str) -> str:
    nodes = {name: facts.device(name).numa_node for name in (fast, slow)}
    buffer = edge.buffer_node
    if facts.numa_nodes is not None and len(facts.numa_nodes) == 1:
        return "The machine has one NUMA node, so the cause is another: compare PCIe generations and widths"
    if facts.numa_nodes is None or buffer is None or None in nodes.values():
        return "Whether this is NUMA cannot be told: the node of a GPU or of the buffer is unknown"
    if nodes[fast] == nodes[slow]:
        return f"Both sit on node {nodes[fast]}, so the cause is another: compare PCIe generations and widths"
    if nodes[slow] != buffer == nodes[fast]:
        bind = f"numactl --cpunodebind={nodes[slow]} --membind={nodes[slow]}"
        return (
            f"NUMA: the buffer lies on node {buffer}, across the sockets from {slow}. Memory for its copies "
            f"belongs on node {nodes[slow]} (`{bind}`"
            + (")" if facts.numactl else "; numactl is not installed here)")
        )
    return f"The buffer lies on node {buffer}, which does not explain it: compare PCIe generations and widths"


def _name(edge: LinkEdge) -> str:
    return f"{edge.src} to {edge.dst} ({edge.path})"
