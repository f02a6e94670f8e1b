"""C032, C035, C036: links that spoil what crosses them are gone round, and training comes to the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from dflash.contract.config import load_config
from dflash.contract.errors import DeviceError
from dflash.contract.events import Probe, event_schema
from dflash.contract.link_facts import LinkFacts
from dflash.contract.sections import DevicesConfig, TransportChoice
from dflash.devices import DeviceSet
from dflash.link_ends import LogicalEnds
from dflash.link_probe import LinkProbe
from dflash.routes import Route, choose_route, describe_routes, pairs_in_use
from dflash.trainer import TrainResult, prepare
from tests.small_training import on_logical_devices

small = ("split=2-2", *on_logical_devices)
one_way = ("logical:0", "logical:2")


class Rows:
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def append(self, row: tuple[Any, ...]) -> None:
        self.rows.append(dict(zip(event_schema.names, row, strict=True)))


def probe(bad: set[tuple[str, str]], *, host_is_right: bool = True) -> LinkFacts:
    """Measured links of four devices, some of which let words arrive wrong."""
    ends = LogicalEnds(
        4, DevicesConfig(link_gigabytes_per_s=50, pinned_gigabytes_per_s=50, pageable_gigabytes_per_s=50)
    )
    try:
        facts = LinkProbe(ends, 8_000).measure()
    finally:
        ends.close()
    edges = [
        replace(e, wrong_words=7)
        if (e.src, e.dst) in bad or (e.path == "pinned" and not host_is_right)
        else e
        for e in facts.edges
    ]
    return replace(facts, edges=tuple(replace(e, gb_per_s=50.0) for e in edges))


def train(
    monkeypatch: pytest.MonkeyPatch, facts: LinkFacts, *assignments: str
) -> tuple[TrainResult, list[dict[str, Any]], list[str]]:
    """A run whose probe found those links: its result, copies, and what is said of its routes."""

    def routes(devices: DeviceSet, choice: TransportChoice, config: DevicesConfig) -> tuple[Route, ...]:
        return tuple(choose_route(pair, facts) for pair in pairs_in_use(devices, choice))

    monkeypatch.setattr("dflash.trainer.find_routes", routes)
    rows = Rows()
    trainer = prepare(
        load_config(None, (*small, "transport=auto", *assignments)), probe=Probe(rows, "trainer")
    )
    result = trainer.run()
    copies = [row for row in rows.rows if row["name"] == "copy"]
    return result, copies, describe_routes(trainer.routes)


@pytest.fixture(scope="module")
def reference() -> TrainResult:
    return prepare(load_config(None, (*small, "transport=host"))).run()


def test_no_copy_crosses_links_that_spoil_data(
    monkeypatch: pytest.MonkeyPatch, reference: TrainResult
) -> None:
    every = {(f"logical:{a}", f"logical:{b}") for a in range(4) for b in range(4) if a != b}
    result, copies, said = train(monkeypatch, probe(every))
    assert {row["path"] for row in copies} == {"pinned"}
    assert "logical:0>logical:2" in " ".join(said)
    assert "IOMMU or ACS" in " ".join(said)
    for ours, theirs in zip(result.losses, reference.losses, strict=True):
        assert ours == pytest.approx(theirs, rel=2e-5)
    assert all(torch.isfinite(weight).all() for weight in result.weights().values())


def test_one_bad_pair_is_gone_round_and_no_other(
    monkeypatch: pytest.MonkeyPatch, reference: TrainResult
) -> None:
    result, copies, said = train(monkeypatch, probe({one_way}))
    direct = {(row["src"], row["dst"]) for row in copies if row["path"] == "peer"}
    assert one_way not in direct
    assert direct, "the other pairs keep their fast way"
    assert any("7 of" in line and "logical:0" in line for line in said)
    for ours, theirs in zip(result.losses, reference.losses, strict=True):
        assert ours == pytest.approx(theirs, rel=2e-5)


def test_sums_of_colocated_drafters_go_round_a_bad_pair(
    monkeypatch: pytest.MonkeyPatch, reference: TrainResult
) -> None:
    facts = probe({("logical:1", "logical:0")})
    result, copies, said = train(monkeypatch, facts, "split=colocated-2")
    assert copies == []
    assert any(line.startswith("pinned for logical:0>logical:1, logical:1>logical:0") for line in said)
    for ours, theirs in zip(result.losses, reference.losses, strict=True):
        assert ours == pytest.approx(theirs, rel=2e-5)


def test_a_pair_without_a_right_way_ends_the_run_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match="no way between two devices") as caught:
        train(monkeypatch, probe({one_way}, host_is_right=False))
    assert caught.value.where == "logical:0 to logical:2"


def test_the_planted_damage_is_what_is_measured() -> None:
    assert [(e.src, e.dst) for e in probe({one_way}).corrupt] == [one_way]
    assert probe(set()).corrupt == ()
