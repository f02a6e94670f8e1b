"""What machines with faulty, slow, partial and far links are told; from the casebook's probes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dflash.contract.link_facts import LinkDevice, LinkEdge, LinkFacts, host
from dflash.link_findings import judge_links


def machine(
    edges: list[LinkEdge],
    nodes: list[int | None],
    *,
    numa_nodes: tuple[int, ...] | None = (0, 1),
    **facts: Any,
) -> LinkFacts:
    devices = tuple(
        LinkDevice(name=f"cuda:{i}", model="H200", uuid=None, pci=None, numa_node=node, numa_reason=None)
        for i, node in enumerate(nodes)
    )
    known: dict[str, Any] = {"emulated": False, "iommu": None, "numactl": True, **facts}
    return LinkFacts(
        measured_utc="2026-01-01T00:00:00Z",
        torch="2",
        numa_nodes=numa_nodes,
        devices=devices,
        edges=tuple(edges),
        **known,
    )


def host_edges(count: int, gb_per_s: float = 11.8) -> list[LinkEdge]:
    """Right in both directions, all equally fast."""
    ways = [way for i in range(count) for way in ((f"cuda:{i}", host), (host, f"cuda:{i}"))]
    return [
        LinkEdge(src=s, dst=d, path="pinned", gb_per_s=gb_per_s, words=9, wrong_words=0, buffer_node=0)
        for s, d in ways
    ]


def probe(data_dir: Path, name: str) -> tuple[dict[str, Any], list[LinkEdge]]:
    """A fake probe of the casebook and its peer edges."""
    case = json.loads((data_dir / "cases/transport" / name).read_text())
    access, count = case["can_access_peer"], case["gpus"]
    right = access if case["pattern_ok"] == "same" else case["pattern_ok"]
    edges = [
        LinkEdge(
            src=f"cuda:{i}",
            dst=f"cuda:{j}",
            path="peer",
            peer_access=bool(access[i][j]),
            words=1000,
            wrong_words=0 if right[i][j] or not access[i][j] else 12,
            gb_per_s=case["gbps_p2p"][i][j] if "gbps_p2p" in case else 300.0,
        )
        for i in range(count)
        for j in range(count)
        if i != j
    ]
    return case, edges


def test_corrupt_peer_copies_are_named_with_the_usual_cause(data_dir: Path) -> None:
    """C032."""
    case, edges = probe(data_dir, "c032_probe_claims_yes_data_wrong.json")
    facts = judge_links(machine([*edges, *host_edges(4)], [0, 0, 1, 1], iommu=True))
    assert len(facts.corrupt) == 12
    first = facts.findings[0]
    assert "cuda:0 to cuda:1 (peer): 12 of 1000 words arrived wrong" in first
    assert all(hint in first for hint in case["expected"]["hint_mentions"])
    assert "the IOMMU is on here" in first
    staged = facts.staged_gb_per_s("cuda:0", "cuda:1")
    assert staged == pytest.approx(11.8 / 2), "the way through the host is right, and there to be chosen"


def test_a_peer_path_slower_than_the_host_is_named_with_both_speeds(data_dir: Path) -> None:
    """C033."""
    _, edges = probe(data_dir, "c033_probe_slow_p2p.json")
    facts = judge_links(machine([*edges, *host_edges(2, gb_per_s=23.6)], [0, 0]))
    assert [f for f in facts.findings if "cuda:0 to cuda:1" in f] == [
        "cuda:0 to cuda:1 (peer): 1.9 GB/s is slower than the way through pinned host memory, 11.8 GB/s"
    ]
    assert len(facts.findings) == 2


def test_islands_are_named_with_what_they_mean_for_a_split(data_dir: Path) -> None:
    """C036."""
    case, edges = probe(data_dir, "c036_probe_partial_matrix.json")
    facts = judge_links(machine([*edges, *host_edges(8)], [0] * 8))
    [finding] = facts.findings
    assert "cuda:0 cuda:1 cuda:2 cuda:3 | cuda:4 cuda:5 cuda:6 cuda:7" in finding
    assert case["expected"]["tuner_hint"].removesuffix("avoids the host path") in finding
    for edge, way in case["expected"]["per_edge"].items():
        src, _, dst = edge.partition("->")
        found = facts.edge(f"cuda:{src}", f"cuda:{dst}", "peer")
        assert found is not None
        assert found.peer_access is (way == "p2p")


def test_no_peer_access_at_all_is_said_once() -> None:
    edges = [
        LinkEdge(src=f"cuda:{i}", dst=f"cuda:{1 - i}", path="peer", peer_access=False, gb_per_s=20.0)
        for i in range(2)
    ]
    findings = judge_links(machine([*edges, *host_edges(2)], [0, 0])).findings
    assert findings == ("no GPU has peer access to another: copies between them go through host memory",)


def uneven(buffer: int | None, nodes: list[int | None], **facts: Any) -> list[str]:
    """GPU 0 copies from host memory at 330 GB/s, GPU 1 at 115."""
    edges = [
        LinkEdge(src=host, dst=f"cuda:{i}", path="pinned", gb_per_s=speed, buffer_node=buffer)
        for i, speed in enumerate((330.0, 115.0))
    ]
    return list(judge_links(machine(edges, nodes, **facts)).findings)


def test_a_buffer_on_the_far_socket_is_named_numa_with_both_nodes() -> None:
    """C048."""
    [finding] = uneven(0, [0, 1])
    assert "2.9 times: cuda:0 (NUMA node 0) 330 GB/s, cuda:1 (NUMA node 1) 115 GB/s" in finding
    assert "NUMA: the buffer lies on node 0, across the sockets from cuda:1" in finding
    assert "numactl --cpunodebind=1 --membind=1" in finding
    assert "not installed" not in finding
    assert "numactl is not installed here" in uneven(0, [0, 1], numactl=False)[0]


@pytest.mark.parametrize(
    ("buffer", "nodes", "numa_nodes", "told"),
    [
        (0, [0, 0], (0,), "one NUMA node, so the cause is another"),
        (0, [None, None], (0,), "one NUMA node, so the cause is another"),
        (None, [0, 1], (0, 1), "cannot be told"),
        (0, [0, None], (0, 1), "cannot be told"),
        (0, [0, 1], None, "cannot be told"),
        (0, [1, 1], (0, 1), "Both sit on node 1"),
        (1, [0, 1], (0, 1), "does not explain it"),
    ],
)
def test_numa_is_not_blamed_where_it_cannot_be_the_cause_or_is_unknown(
    buffer: int | None, nodes: list[int | None], numa_nodes: tuple[int, ...] | None, told: str
) -> None:
    """C048."""
    [finding] = uneven(buffer, nodes, numa_nodes=numa_nodes)
    assert told in finding
    assert "NUMA: the buffer" not in finding


def test_small_differences_and_emulated_links_are_not_uneven() -> None:
    edges = [
        LinkEdge(src=host, dst=f"cuda:{i}", path="pinned", gb_per_s=speed, buffer_node=0)
        for i, speed in enumerate((50.0, 35.0))
    ]
    assert judge_links(machine(edges, [0, 1])).findings == ()
    assert uneven(0, [0, 1], emulated=True) == []


def test_a_corrupt_or_unmeasured_way_through_the_host_is_no_alternative() -> None:
    edges = host_edges(2)
    wrong = LinkEdge(src=host, dst="cuda:1", path="pinned", gb_per_s=9.0, words=9, wrong_words=1)
    assert machine([*edges[:3], wrong], [0, 0]).staged_gb_per_s("cuda:0", "cuda:1") is None
    assert machine(edges[:1], [0, 0]).staged_gb_per_s("cuda:0", "cuda:1") is None
