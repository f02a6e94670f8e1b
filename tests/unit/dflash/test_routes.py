"""Routes: the fastest way that is proven right, pair by pair; from the casebook's probes and as declared."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash.contract.config import TrainConfig, load_config
from dflash.contract.errors import DeviceError
from dflash.contract.link_facts import LinkDevice, LinkEdge, LinkFacts, host
from dflash.contract.sections import DevicesConfig, TransportChoice, presets
from dflash.devices import open_devices
from dflash.link_ends import LogicalEnds
from dflash.link_probe import LinkProbe
from dflash.routes import (
    Route,
    choose_route,
    describe_routes,
    doubt_peer,
    find_routes,
    pairs_in_use,
)

auto = TransportChoice(*presets["auto"], depth=2)


def facts_of(data_dir: Path, name: str, *, staged_gb_per_s: float = 12.0) -> tuple[dict[str, Any], LinkFacts]:
    """What a fake probe of the casebook found; pinned copies are right both ways."""
    case = json.loads((data_dir / "cases/transport" / name).read_text())
    access, count = case["can_access_peer"], case["gpus"]
    right = access if case["pattern_ok"] == "same" else case["pattern_ok"]
    speeds = case.get("gbps_p2p")
    edges = [
        LinkEdge(
            src=f"cuda:{i}",
            dst=f"cuda:{j}",
            path="peer",
            peer_access=bool(access[i][j]),
            words=1000,
            wrong_words=0 if right[i][j] or not access[i][j] else 12,
            gb_per_s=speeds[i][j] if speeds else 300.0,
        )
        for i in range(count)
        for j in range(count)
        if i != j
    ]
    edges += [
        LinkEdge(src=s, dst=d, path="pinned", gb_per_s=2 * staged_gb_per_s, words=9, wrong_words=0)
        for i in range(count)
        for s, d in ((f"cuda:{i}", host), (host, f"cuda:{i}"))
    ]
    devices = tuple(
        LinkDevice(name=f"cuda:{i}", model=None, uuid=None, pci=None, numa_node=None, numa_reason=None)
        for i in range(count)
    )
    return case, LinkFacts(
        measured_utc="",
        emulated=False,
        torch="",
        numa_nodes=None,
        iommu=None,
        numactl=False,
        devices=devices,
        edges=tuple(edges),
    )


def test_a_pair_whose_pattern_arrived_wrong_goes_through_the_host(data_dir: Path) -> None:
    """C032, C035, C038: access claimed, data wrong."""
    _, facts = facts_of(data_dir, "c032_probe_claims_yes_data_wrong.json")
    route = choose_route(("cuda:0", "cuda:1"), facts)
    assert route.path == "pinned"
    assert "12 of 1000 words arrived wrong from cuda:0 to cuda:1" in route.why
    assert "IOMMU or ACS" in route.why


def test_one_wrong_direction_refuses_the_pair_and_no_other(data_dir: Path) -> None:
    _, facts = facts_of(data_dir, "c036_probe_partial_matrix.json")
    edges = [replace(e, wrong_words=1) if (e.src, e.dst) == ("cuda:1", "cuda:0") else e for e in facts.edges]
    facts = replace(facts, edges=tuple(edges))
    ways = [
        choose_route(p, facts).path
        for p in (("cuda:0", "cuda:1"), ("cuda:1", "cuda:0"), ("cuda:0", "cuda:2"))
    ]
    assert ways == ["pinned", "pinned", "peer"]


def test_a_peer_way_slower_than_the_host_is_not_taken(data_dir: Path) -> None:
    """C033, with both speeds said."""
    _, facts = facts_of(data_dir, "c033_probe_slow_p2p.json")
    route = choose_route(("cuda:0", "cuda:1"), facts)
    assert (route.path, route.peer_gb_per_s, route.pinned_gb_per_s) == ("pinned", 1.9, 12.0)
    _, slower_host = facts_of(data_dir, "c033_probe_slow_p2p.json", staged_gb_per_s=1.0)
    assert choose_route(("cuda:0", "cuda:1"), slower_host).path == "peer"
    (line,) = describe_routes([route])
    assert "cuda:0>cuda:1" in line
    assert "peer 1.9 GB/s, pinned 12 GB/s" in line


def test_pairs_without_trouble_are_named_only_when_they_are_few() -> None:
    def said(path: str, count: int) -> str:
        routes = [Route(src=f"cuda:{i}", dst="cuda:9", path=path, why="so") for i in range(count)]
        (line,) = describe_routes(routes)
        return line

    assert "cuda:0>cuda:9, cuda:1>cuda:9" in said("peer", 2)
    assert said("peer", 9).startswith("peer for 9 pairs of devices: so")
    assert "cuda:8>cuda:9" in said("pinned", 9)


def test_islands_are_crossed_through_the_host_pair_by_pair(data_dir: Path) -> None:
    """C036."""
    case, facts = facts_of(data_dir, "c036_probe_partial_matrix.json")
    names = {"p2p": "peer", "host-staged": "pinned"}
    for edge, way in case["expected"]["per_edge"].items():
        src, _, dst = edge.partition("->")
        assert choose_route((f"cuda:{src}", f"cuda:{dst}"), facts).path == names[way]


def test_a_pair_without_any_right_way_is_refused_by_name(data_dir: Path) -> None:
    _, facts = facts_of(data_dir, "c032_probe_claims_yes_data_wrong.json")
    facts = replace(facts, edges=tuple(e for e in facts.edges if e.path == "peer"))
    with pytest.raises(DeviceError) as caught:
        choose_route(("cuda:2", "cuda:3"), facts)
    assert caught.value.where == "cuda:2 to cuda:3"


def test_what_could_not_be_tried_is_not_taken(data_dir: Path) -> None:
    _, facts = facts_of(data_dir, "c036_probe_partial_matrix.json")
    edges = [
        replace(e, wrong_words=None, reason="out of memory") if e.path == "peer" else e for e in facts.edges
    ]
    route = choose_route(("cuda:0", "cuda:1"), replace(facts, edges=tuple(edges)))
    assert route.path == "pinned"
    assert "out of memory" in route.why


def test_routes_between_logical_devices_follow_the_declared_speeds() -> None:
    config = load_config(
        None,
        [
            "split=1-1",
            "transport=auto",
            "devices.link_gigabytes_per_s=20",
            "devices.pinned_gigabytes_per_s=50",
        ],
    )
    (route,) = find_routes(open_devices(config), config.transport_choice, config.devices)
    assert (route.path, route.peer_gb_per_s, route.pinned_gb_per_s) == ("pinned", 20.0, 25.0)
    faster = replace(config.devices, link_gigabytes_per_s=26.0)
    (route,) = find_routes(open_devices(config), config.transport_choice, faster)
    assert route.path == "peer"
    assert find_routes(open_devices(config), TransportChoice(*presets["peer"], 2), DevicesConfig()) == ()


def test_without_a_choice_the_fastest_right_way_is_taken_and_it_is_peer_on_logical_devices() -> None:
    config = TrainConfig(devices=DevicesConfig(kind="logical"))
    assert config.transport.preset == "auto"
    for split in ("2-3", "colocated-3"):
        chosen = config.replacing({"pipeline.split": split, "window.tokens": 65536})
        routes = find_routes(open_devices(chosen), chosen.transport_choice, chosen.devices)
        assert {route.path for route in routes if route.src != route.dst} == {"peer"}


def test_a_colocated_split_joins_its_devices_by_sums_and_weights_only() -> None:
    devices = open_devices(load_config(None, ["split=colocated-3", "window.tokens=4096"]))
    pairs = {(int(a[-1]), int(b[-1])) for a, b in pairs_in_use(devices, replace(auto, dispatch="local"))}
    assert pairs == {(0, 0), (1, 1), (2, 2), (0, 1), (1, 0), (0, 2), (2, 0)}


def test_pairs_are_those_a_run_copies_between() -> None:
    devices = open_devices(load_config(None, ["split=1-3", "window.tokens=4096"]))
    names = {(int(a[-1]), int(b[-1])) for a, b in pairs_in_use(devices, auto)}
    states, sums = {(0, 1), (0, 2), (0, 3)}, {(1, 2), (2, 1), (1, 3), (3, 1)}
    assert names == states | sums
    shared = pairs_in_use(devices, replace(auto, queue="shared"))
    assert len(shared) == len(names) + 2  # items may be moved between any two drafters
    together = open_devices(load_config(None, ["split=1-1", "devices.gpus=1"]))
    (route,) = find_routes(together, auto, DevicesConfig())
    assert route.path == "within"


def test_only_what_joins_the_pairs_is_measured() -> None:
    ends = LogicalEnds(4, DevicesConfig(link_gigabytes_per_s=5, pinned_gigabytes_per_s=5))
    try:
        facts = LinkProbe(ends, 80_000).measure_between(
            [("logical:2", "logical:0"), ("logical:0", "logical:2")]
        )
    finally:
        ends.close()
    a, b = "logical:0", "logical:2"
    found = {(e.src, e.dst, e.path) for e in facts.edges}
    pinned = {way for name in (a, b) for way in ((name, host, "pinned"), (host, name, "pinned"))}
    assert found == {(a, b, "peer"), (b, a, "peer")} | pinned
    route = choose_route((a, b), facts)
    assert isinstance(route, Route)
    assert route.peer_gb_per_s is not None
    assert route.pinned_gb_per_s is not None


def test_peer_chosen_by_name_is_used_with_a_warning_where_it_is_slower() -> None:
    """C033."""
    config = load_config(
        None,
        [
            "split=1-1",
            "transport=peer",
            "devices.link_gigabytes_per_s=1.9",
            "devices.pinned_gigabytes_per_s=23.6",
        ],
    )
    devices, choice = open_devices(config), config.transport_choice
    assert find_routes(devices, choice, config.devices) == ()
    (warning,) = doubt_peer(devices, choice, config.devices)
    assert "from logical:0 to logical:1 make 1.9 GB/s" in warning
    assert "pinned host memory 11.8 GB/s" in warning
    assert "transport=auto" in warning
    assert "more pairs" not in warning
    assert doubt_peer(devices, choice, replace(config.devices, link_gigabytes_per_s=12.0)) == []
    assert doubt_peer(devices, auto, config.devices) == []
    (warning,) = doubt_peer(open_devices(load_config(None, ["split=2-2"])), choice, config.devices)
    assert "and 5 more pairs are slower that way" in warning
    together = open_devices(load_config(None, ["split=1-1", "devices.gpus=1"]))
    assert doubt_peer(together, choice, config.devices) == []
