"""Every transport on logical devices carries known bits unchanged, and what is not so is told."""

from __future__ import annotations

import argparse
import itertools

import pytest

from benchmarks.checksums import (
    Load,
    carry,
    combinations,
    is_right,
    largest_logical,
    open_places,
    summarise,
)
from dflash.channel import Channel
from dflash.contract.sections import DevicesConfig, TransportChoice
from dflash.contract.split import Split
from dflash.transport.carrier import LogicalCarrier

fast = DevicesConfig(
    kind="logical",
    link_gigabytes_per_s=50,
    pinned_gigabytes_per_s=50,
    pageable_gigabytes_per_s=50,
    link_latency_us=0,
)
sharing = DevicesConfig(
    kind="logical",
    link_gigabytes_per_s=50,
    pinned_gigabytes_per_s=50,
    pageable_gigabytes_per_s=50,
    link_latency_us=0,
    gpus=2,
)
peer = TransportChoice("per_drafter", "peer", "round_robin", 2)


@pytest.mark.parametrize("config", [fast, sharing], ids=["apart", "sharing"])
def test_thousands_of_batches_arrive_once_and_whole_through_every_transport(config: DevicesConfig) -> None:
    """C039, C041, C044 without a GPU: 6,000 batches a case."""
    devices = open_places("2-2", config)
    choices = combinations(Split.parse("2-2"))
    assert len(choices) >= 12
    rows = [carry(choice, devices, config, Load(400, 256, largest_logical)) for choice in choices]
    assert [row for row in rows if not is_right(row)] == []
    assert {row["batches"] for row in rows} == {400}


def test_a_single_wrong_word_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    start, calls = LogicalCarrier.start, itertools.count()

    def corrupting(self, source, edge, *, into, after, fields):  # type: ignore[no-untyped-def]
        if next(calls) == 3:
            source = source.clone()
            source[0, 5] += 1
        return start(self, source, edge, into=into, after=after, fields=fields)

    monkeypatch.setattr(LogicalCarrier, "start", corrupting)
    row = carry(peer, open_places("1-1", fast), fast, Load(10, 256, 512))
    assert not is_right(row)
    assert (row["wrong_words"], row["missing"], row["repeated"]) == (1, 0, 0)


def test_a_run_that_was_cut_off_is_not_right_as_a_whole() -> None:
    arguments = argparse.Namespace(split="1-1", gpus=0, logical=True)
    row = carry(peer, open_places("1-1", fast), fast, Load(10, 256, 512))
    assert is_right(row)
    assert not summarise([row], 2, arguments)["right"]
    assert summarise([row, row], 2, arguments)["right"]


@pytest.mark.parametrize(("times", "missing", "said"), [(0, 1, ""), (2, 0, "already done")])
def test_a_lost_or_a_repeated_batch_is_told(
    monkeypatch: pytest.MonkeyPatch, times: int, missing: int, said: str
) -> None:
    put = Channel.put

    def put_oddly(self, item, probe):  # type: ignore[no-untyped-def]
        for _ in range(times if item.batch.id == 9 else 1):
            put(self, item, probe)

    monkeypatch.setattr(Channel, "put", put_oddly)
    row = carry(peer, open_places("1-1", fast), fast, Load(10, 256, 512))
    assert not is_right(row)
    assert (row["missing"], bool(row["errors"])) == (missing, bool(said))
    assert said in "".join(row["errors"])
