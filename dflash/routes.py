"""Which devices a run copies between, and for transport.path=auto the fastest way proven right for each pair.

On GPUs a pattern is sent both ways and the speed measured, in this process and so under its own allocator,
before any thread starts: the first copies also switch peer access on. On logical devices speeds are those
declared. A pair whose pattern arrived wrong is never used for peer copies. Knows nothing of transports.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product
from typing import Any

import torch

from dflash.contract.errors import DeviceError
from dflash.contract.link_facts import LinkFacts
from dflash.contract.sections import DevicesConfig, TransportChoice
from dflash.devices import Device, DeviceSet
from dflash.link_ends import CudaEnds
from dflash.link_probe import LinkProbe

most_named = 6  # pairs of devices, in one line
probe_bytes = 32_000_000  # a copy of it takes 0.1 ms on the fastest links, 3 ms on slow ones
Pair = tuple[str, str]  # names of source and destination


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The way from one device to another. Speeds are None where none was measured."""

    src: str
    dst: str
    path: str  # within: nothing is copied; peer; pinned
    peer_gb_per_s: float | None = None
    pinned_gb_per_s: float | None = None  # down and up, one after the other
    why: str

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for strict JSON."""
        return dataclasses.asdict(self)


def find_routes(devices: DeviceSet, choice: TransportChoice, config: DevicesConfig) -> tuple[Route, ...]:
    """The routes of a run, none unless its path is `auto`. Raises DeviceError for a pair without any."""
    if choice.path != "auto":
        return ()
    pairs = pairs_in_use(devices, choice)
    if devices.emulated:
        return tuple(declared_route(pair, config) for pair in pairs)
    facts = _measure(devices, tuple(pairs))
    return tuple(choose_route(pair, facts) for pair in pairs)


def doubt_peer(devices: DeviceSet, choice: TransportChoice, config: DevicesConfig) -> list[str]:
    """What a run told to copy from device to device is warned of: pairs it had better not copy between.

    One line for all of them, which names the slowest with both speeds.
    """
    if choice.path != "peer":
        return []
    pairs = [pair for pair in pairs_in_use(devices, choice) if pair[0] != pair[1]]
    if devices.emulated:
        routes = [declared_route(pair, config) for pair in pairs]
        speeds = [(r.src, r.dst, r.peer_gb_per_s, r.pinned_gb_per_s) for r in routes]
    else:
        facts = _measure(devices, tuple(pairs))
        edges = [edge for edge in (facts.edge(*pair, "peer") for pair in pairs) if edge is not None]
        speeds = [(e.src, e.dst, e.gb_per_s, facts.staged_gb_per_s(e.src, e.dst)) for e in edges]
    doubted = [
        (peer, pinned, src, dst)
        for src, dst, peer, pinned in speeds
        if peer is not None and pinned is not None and peer < pinned
    ]
    if not doubted:
        return []
    peer, pinned, src, dst = min(doubted)
    others = f", and {len(doubted) - 1} more pairs are slower that way" if len(doubted) > 1 else ""
    text = (
        f"peer copies from {src} to {dst} make {peer:.3g} GB/s, the way through pinned host memory "
        f"{pinned:.3g} GB/s{others}: transport=auto would take the faster"
    )
    return [text]


@lru_cache(maxsize=32)
def _measure(devices: DeviceSet, pairs: tuple[Pair, ...]) -> LinkFacts:
    """The links that join those pairs of GPUs. Pairs of one device have none.

    Measured once: a process that makes one run after another on the same devices finds them as they were.
    """
    used = {device.name: device for device in devices.all}
    ends = CudaEnds(list(used.values()), probe_bytes)
    facts = LinkProbe(ends, probe_bytes).measure_between([pair for pair in pairs if pair[0] != pair[1]])
    torch.cuda.empty_cache()  # the buffers of the probe
    return facts


def pairs_in_use(devices: DeviceSet, choice: TransportChoice) -> list[Pair]:
    """Every direction in which a run may copy from device to device, or hand over.

    States go from targets to drafters unless they are to pass through the host, and from drafter to drafter
    where those share a queue; sums and weights of drafters go to the first and back.
    """
    leader, *others = devices.drafters
    pairs: list[Pair] = []
    if choice.path in ("peer", "auto"):
        pairs += [(target.name, home.name) for target, home in _journeys(devices, choice.dispatch)]
    moved = choice.queue == "shared" and choice.path != "pageable"
    for one, other in combinations(devices.drafters, 2) if moved else product([leader], others):
        pairs += [(one.name, other.name), (other.name, one.name)]
    return list(dict.fromkeys(pairs))


def _journeys(devices: DeviceSet, dispatch: str) -> Iterator[tuple[Device, Device]]:
    """From which targets to which drafters states are sent."""
    for (index, target), (number, drafter) in product(
        enumerate(devices.targets), enumerate(devices.drafters)
    ):
        if dispatch != "local" or index % len(devices.drafters) == number:
            yield target, drafter


def declared_route(pair: Pair, config: DevicesConfig) -> Route:
    """Between logical devices."""
    src, dst = pair
    if src == dst:
        return _within(pair)
    peer, pinned = config.link_gigabytes_per_s, config.pinned_gigabytes_per_s / 2
    path = "peer" if peer >= pinned else "pinned"
    return Route(
        src=src, dst=dst, path=path, peer_gb_per_s=peer, pinned_gb_per_s=pinned, why="faster as declared"
    )


def choose_route(pair: Pair, facts: LinkFacts) -> Route:
    """From what was measured. Raises DeviceError when neither way is right."""
    src, dst = pair
    if src == dst:
        return _within(pair)
    edges, staged = (
        (facts.edge(src, dst, "peer"), facts.edge(dst, src, "peer")),
        facts.staged_gb_per_s(src, dst),
    )
    there = edges[0]
    speed = None if there is None else there.gb_per_s
    refused = _why_no_peer(src, dst, facts)
    if refused is not None and staged is None:
        raise DeviceError(
            "there is no way between two devices on which data arrives as it was sent",
            where=f"{src} to {dst}",
            found=f"{refused}; nor is the way through pinned host memory right",
            remedy="choose a split without this pair; transport=host avoids both ways for the states",
        )
    if refused is not None:
        path, why = "pinned", refused
    elif staged is None or (speed is not None and speed >= staged):
        path, why = "peer", "faster as measured" if staged is not None else "pinned could not be measured"
    else:
        path, why = "pinned", "peer is slower as measured"
    return Route(src=src, dst=dst, path=path, peer_gb_per_s=speed, pinned_gb_per_s=staged, why=why)


def _why_no_peer(src: str, dst: str, facts: LinkFacts) -> str | None:
    """Why peer copies between two devices are out of the question; None when they are proven right."""
    for edge in (facts.edge(src, dst, "peer"), facts.edge(dst, src, "peer")):
        if edge is None or edge.correct is None:
            return "peer copies could not be tried" + (f": {edge.reason}" if edge and edge.reason else "")
        if not edge.correct:
            return (
                f"peer copies are refused: {edge.wrong_words} of {edge.words} words arrived wrong from "
                f"{edge.src} to {edge.dst}; IOMMU or ACS settings are the usual cause"
            )
        if edge.peer_access is False:
            return "the driver has no peer access for this pair"
    return None


def _within(pair: Pair) -> Route:
    return Route(src=pair[0], dst=pair[1], path="within", why="one device: nothing is copied")


def describe_routes(routes: Sequence[Route]) -> list[str]:
    """Lines for people: which way each pair goes, alike pairs together, and a line for each refused pair.

    Pairs that have the fast way are counted rather than named when they are many.
    """
    groups: dict[tuple[str, str], list[Route]] = {}
    for route in routes:
        groups.setdefault((route.path, route.why), []).append(route)
    lines = []
    for (path, why), alike in groups.items():
        names = ", ".join(f"{route.src}>{route.dst}" for route in alike)
        if path != "pinned" and len(alike) > most_named:
            names = f"{len(alike)} pairs of devices"
        peer, pinned = (_range(getattr(r, f"{way}_gb_per_s") for r in alike) for way in ("peer", "pinned"))
        lines.append(f"{path} for {names}: {why}" + f"; peer {peer}, pinned {pinned}" * (path != "within"))
    return lines


def _range(values: Iterable[float | None]) -> str:
    known = sorted({f"{value:.3g}" for value in values if value is not None}, key=float)
    return f"{'-'.join(dict.fromkeys((known[0], known[-1])))} GB/s" if known else "n/a"
