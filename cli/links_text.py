"""Measured links in words. Knows nothing of streams: it is given LinkFacts and returns text."""

from __future__ import annotations

from cli.layout import facts, plain, table
from dflash.contract.link_facts import LinkDevice, LinkEdge, LinkFacts
from reports import text


def describe_links(links: LinkFacts) -> str:
    """What to know first, then the devices, then every edge."""
    rows = [("finding", finding) for finding in links.findings] or [
        ("finding", "nothing out of the ordinary")
    ]
    if links.emulated:
        rows.append(("emulated", "paced links of logical devices: this says nothing of the speed of GPUs"))
    if links.corrupt == () and any(edge.correct is None for edge in links.edges):
        rows.append(("not seen", "some edges were not measured: their reasons are below"))
    rows.append(("NUMA", _numa(links)))
    blocks = [
        facts(rows),
        table(("device", "model", "PCI", "NUMA node"), map(_device, links.devices)),
        table(
            ("from", "to", "path", "peer access", "alone", "both ways", "all at once", "latency", "arrived"),
            map(_edge, links.edges),
        ),
    ]
    reasons = [(f"{e.src} to {e.dst} ({e.path})", e.reason) for e in links.edges if e.reason]
    if reasons:
        blocks.append(facts(reasons))
    return plain("\n\n".join(blocks))


def _numa(links: LinkFacts) -> str:
    if links.numa_nodes is None:
        return text.missing("the system lists no nodes")
    buffers = {edge.buffer_node for edge in links.edges if edge.buffer_node is not None}
    where = (
        f"; the host buffers lay on {text.joined(sorted(f'node {b}' for b in buffers))}" if buffers else ""
    )
    return f"{text.count_of(len(links.numa_nodes), 'node')}{where}"


def _device(device: LinkDevice) -> tuple[str, ...]:
    node = text.missing(device.numa_reason) if device.numa_node is None else str(device.numa_node)
    return device.name, device.model or "n/a", device.pci or "n/a", node


def _edge(edge: LinkEdge) -> tuple[str, ...]:
    access = {True: "yes", False: "no", None: ""}[edge.peer_access]
    arrived = {True: "right", False: f"WRONG: {edge.wrong_words} of {edge.words} words", None: "n/a"}
    together = "" if edge.path == "pageable" else _speed(edge.both_ways_gb_per_s)
    at_once = "" if edge.all_at_once_gb_per_s is None else _speed(edge.all_at_once_gb_per_s)
    latency = None if edge.latency_us is None else edge.latency_us / 1e6
    speeds = (_speed(edge.gb_per_s), together, at_once, text.duration(latency))
    return edge.src, edge.dst, edge.path, access, *speeds, arrived[edge.correct]


def _speed(gb_per_s: float | None) -> str:
    return text.missing() if gb_per_s is None else f"{text.significant(gb_per_s)} GB/s"
