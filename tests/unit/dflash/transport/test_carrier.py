"""LogicalCarrier: bytes really move, at the speed declared for their path, and say so."""

from __future__ import annotations

import threading

import pytest
import torch

from dflash.contract.events import Probe, event_schema, silent
from dflash.contract.sections import DevicesConfig
from dflash.devices import LogicalDevice
from dflash.transport.carrier import Edge, LogicalCarrier
from tests.asked_moment import AskedMoment

a, b = LogicalDevice(0), LogicalDevice(1)
edges = [Edge(a, b, "peer"), Edge(a, None, "pinned"), Edge(None, b, "pinned"), Edge(a, None, "pageable")]
fast = DevicesConfig(
    link_gigabytes_per_s=1e6, pinned_gigabytes_per_s=1e6, pageable_gigabytes_per_s=1e6, link_latency_us=0.0
)


class ListLog:
    """Keeps event rows as dicts."""

    def __init__(self) -> None:
        self.rows: list[dict] = []

    def append(self, row: tuple) -> None:
        self.rows.append(dict(zip(event_schema.names, row, strict=True)))


@pytest.mark.parametrize("edge", edges, ids=lambda edge: edge.path)
def test_both_kinds_of_copy_have_memory_of_their_own(edge: Edge) -> None:
    carrier, source = LogicalCarrier(fast, silent), torch.arange(12.0).view(3, 4)
    expected = source.clone()
    now = carrier.copy(source, edge)
    later, moment = carrier.start(source, edge, into=None, after=None, fields={})
    moment.wait()
    source.zero_()
    assert torch.equal(now, expected)
    assert torch.equal(later, expected)
    carrier.close()


def test_each_path_has_its_declared_speed() -> None:
    config = DevicesConfig(
        link_gigabytes_per_s=5.0,
        pinned_gigabytes_per_s=3.0,
        pageable_gigabytes_per_s=2.0,
        link_latency_us=7.0,
    )
    links = [LogicalCarrier(config, silent)._link(edge) for edge in edges]
    assert [(link.gigabytes_per_s, link.latency_us) for link in links] == [
        (5.0, 7.0),
        (3.0, 7.0),
        (3.0, 7.0),
        (2.0, 7.0),
    ]


def test_an_edge_has_one_link() -> None:
    carrier = LogicalCarrier(fast, silent)
    assert carrier._link(Edge(a, b, "peer")) is carrier._link(Edge(a, b, "peer"))
    assert carrier._link(Edge(a, b, "peer")) is not carrier._link(Edge(b, a, "peer"))


def test_an_asynchronous_copy_is_a_span_of_its_link() -> None:
    log = ListLog()
    carrier = LogicalCarrier(fast, Probe(log, "trainer"))
    _, moment = carrier.start(
        torch.zeros(4, 4), Edge(a, b, "peer"), into=None, after=None, fields={"batch": 7, "bytes": 64}
    )
    moment.wait()
    carrier.close()
    (row,) = log.rows
    shown = ("name", "stage", "device", "clock", "src", "dst", "path", "batch", "bytes")
    assert [row[key] for key in shown] == [
        "copy", "link", "logical:0", "host", "logical:0", "logical:1", "peer", 7, 64,
    ]  # fmt: skip


def test_waiting_for_a_copy_is_a_span_only_when_there_is_something_to_wait_for() -> None:
    log, carrier, ready = ListLog(), LogicalCarrier(fast, silent), AskedMoment()
    probe = Probe(log, "drafter")
    waiting = threading.Thread(
        target=carrier.receive, args=(torch.zeros(1), ready, b, probe, {"batch": 1}), daemon=True
    )
    waiting.start()
    assert ready.asked.wait(30)
    assert waiting.is_alive()
    ready.finish()
    waiting.join(30)
    carrier.receive(torch.zeros(1), ready, b, probe, {"batch": 2})
    assert [(row["name"], row["batch"]) for row in log.rows] == [("copy_wait", 1)]


def test_a_copy_that_fails_is_raised_by_the_receiver() -> None:
    carrier = LogicalCarrier(fast, silent)
    _, moment = carrier.start(
        torch.zeros(4, 4), Edge(a, b, "peer"), into=torch.zeros(3, 3), after=None, fields={}
    )
    with pytest.raises(RuntimeError, match="size"):
        carrier.receive(torch.zeros(1), moment, b, silent, {})
    carrier.close()


def test_copies_are_plain_tensors_even_in_inference_mode() -> None:
    carrier = LogicalCarrier(fast, silent)
    with torch.inference_mode():
        source = torch.ones(2, 2)
        now = carrier.copy(source, Edge(a, None, "pageable"))
        later, moment = carrier.start(source, Edge(a, b, "peer"), into=None, after=None, fields={})
        slab = carrier.new_slab(16)
    moment.wait()
    assert not any(tensor.is_inference() for tensor in (now, later, slab))
    carrier.close()


def test_after_an_abort_nothing_starts() -> None:
    carrier = LogicalCarrier(fast, silent)
    first = OSError("first")
    carrier.abort(first)
    carrier.abort(OSError("second"))
    for begin in (
        lambda: carrier.copy(torch.zeros(1), Edge(a, None, "pageable")),
        lambda: carrier.start(torch.zeros(1), Edge(a, b, "peer"), into=None, after=None, fields={}),
    ):
        with pytest.raises(OSError, match="first"):
            begin()
    carrier.close()
