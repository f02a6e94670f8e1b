"""What a run will hold in the memory of every GPU and of the host: a ledger made before anything is loaded.

Plain arithmetic over shapes. A place's needs are those of its worst moments: every role on it is counted at
its own peak, as roles work at the same time. Lines of other moments are left out, so that lines add up to
what is needed. Queues are counted full.

The rule: what weighs the same all the time is counted as it is. On GPUs `slack_share` of what comes and goes
is added, for gaps between blocks of torch's caching allocator. A place that needs more than it has free is
refused.

Knows nothing of torch or of how the figures come about; see `dflash/contract/activations.py` for those within
a forward and backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dflash.contract.activations import (
    BatchShape,
    DrafterShape,
    DrafterWork,
    TargetShape,
    Term,
    float_bytes,
    target_forward,
    total,
)
from dflash.contract.sections import TransportChoice

host = "host"
slack_share = 0.05
# Workspace of cuBLAS for each pair of thread and stream: torch's default on Hopper, inside its allocator.
workspace_bytes = 32 << 20
# Code that CUDA, cuBLAS and triton load with their first kernels, outside torch's allocator and after the
# context is there: `outside_allocator_bytes` of benchmarks/memory_plan.py says what it came to.
late_code_bytes = 256 << 20
send_buffers = 2  # of a target: one that is written, one on its way
fewest_chunk_blocks = 32  # to ask for; fewer make products too small for a GPU
states_in_training = 2  # of a drafter: a batch is let go once the next one is enqueued


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that the plan depends on."""

    target: TargetShape
    drafter: DrafterShape
    batch: BatchShape
    targets: tuple[str, ...]  # the place of each; "host" for logical devices
    drafters: tuple[str, ...]  # of each; the first leads
    transport: (
        TransportChoice  # `pinned` where `auto` sends some pair that way; `auto` itself counts as `peer`
    )
    several_batches: bool  # a drafter trains more than one in a window, so gradients wait while it does
    compiled_target: bool
    compiled_drafter: bool
    checkpointing: bool
    chunk_blocks: int
    token_budget: int
    longest: int  # documents are cut there, so no budget may be smaller
    data_tokens: int  # of all documents
    prefetch_depth: int
    checkpoints: bool  # some are written
    held_out_bytes: int = 0  # states of documents held out, kept for evaluations

    @property
    def emulated(self) -> bool:
        return self.targets[0] == host

    @property
    def item_bytes(self) -> int:
        """Tapped states of the largest batch."""
        return self.batch.tokens * self.token_bytes

    @property
    def token_bytes(self) -> int:
        """Tapped states of a token."""
        return self.drafter.taps * self.target.hidden * self.target.each_bytes


@dataclass(frozen=True, slots=True)
class Line:
    """One entry of the ledger. `why` says how it comes about."""

    place: str
    name: str
    bytes: int
    why: str
    role: str = ""  # "target" or "drafter", where it is that of one
    index: int = 0
    passing: bool = False  # comes and goes, so that the allocator may leave gaps


@dataclass(frozen=True, slots=True)
class Ledger:
    """The plan of a run."""

    lines: tuple[Line, ...]
    moments: Mapping[str, str]  # "drafter 0": where its peak lies

    @property
    def places(self) -> tuple[str, ...]:
        """GPUs first, the host last."""
        names = {line.place for line in self.lines}
        return (*sorted(names - {host}), *(names & {host}))

    def at(self, place: str) -> tuple[Line, ...]:
        """The lines of a place, largest first. Equal roles share a line, and names say whose they are."""
        groups: dict[tuple[str, str, str], list[Line]] = {}
        for line in self.lines:
            if line.place == place and line.bytes:
                groups.setdefault((line.role, line.name, line.why), []).append(line)
        lines = [replace(g[0], name=_whose(g), bytes=sum(line.bytes for line in g)) for g in groups.values()]
        return tuple(sorted(lines, key=lambda line: -line.bytes))

    def needed_bytes(self, place: str) -> int:
        """All lines of a place together."""
        return sum(line.bytes for line in self.lines if line.place == place)

    def allocated_bytes(self, place: str) -> int:
        """What torch's allocator will have handed out at its peak: all but slack and code."""
        return sum(line.bytes for line in self.at(place) if line.name not in (slack_name, code_name))

    def to_json(self, free_bytes: Mapping[str, int | None]) -> dict[str, Any]:
        """For run.json and `plan --json`; `free_bytes` of places that said."""
        places = [
            {
                "place": place,
                "needed_bytes": self.needed_bytes(place),
                "allocated_bytes": None if place == host else self.allocated_bytes(place),
                "free_bytes": free_bytes.get(place),
                "lines": [
                    {"name": line.name, "bytes": line.bytes, "why": line.why} for line in self.at(place)
                ],
            }
            for place in self.places
        ]
        return {"places": places, "moments": dict(self.moments)}


def _whose(lines: list[Line]) -> str:
    first = lines[0]
    if not first.role:
        return first.name
    if len(lines) == 1:
        return f"{first.role} {first.index}: {first.name}"
    numbers = [line.index for line in lines]
    in_a_row = len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1))
    which = f"{numbers[0]} to {numbers[-1]}" if in_a_row else ", ".join(map(str, numbers))
    return f"{first.role}s {which}: {first.name}"


slack_name, code_name = "allocator slack", "CUDA code loaded later"


def plan_memory(facts: Facts) -> Ledger:
    """The ledger of a run."""
    moments: dict[str, str] = {}
    lines: list[Line] = []
    for index, place in enumerate(facts.targets):
        lines += _target_lines(facts, index, place)
        moments[f"target {index}"] = "forward"
    for index, place in enumerate(facts.drafters):
        moment, found = _worst_moment(facts, index)
        moments[f"drafter {index}"] = moment
        lines += _drafter_lines(facts, index, place)
        lines += [Line(place, name, size, why, "drafter", index, passing=True) for name, size, why in found]
    lines += _in_flight_lines(facts)
    moments[host], lines = _with_host(facts, lines)
    lines += _slack_lines(lines)
    return Ledger(tuple(lines), moments)


def _target_lines(facts: Facts, index: int, place: str) -> Iterator[Line]:
    shape, role = facts.target, ("target", index)
    why = f"embedding and {shape.layers} layers, {shape.each_bytes} bytes a weight"
    yield Line(place, "weights", shape.body_parameters * shape.each_bytes, why, *role)
    terms = target_forward(shape, facts.batch, compiled=facts.compiled_target)
    why = f"inside a layer, {facts.batch.rows} × {facts.batch.width} tokens"
    yield Line(place, "activations", total(terms), why, *role, passing=True)
    if place != host:
        yield Line(place, "cuBLAS workspace", workspace_bytes, "one thread", *role)


def _drafter_lines(facts: Facts, index: int, place: str) -> Iterator[Line]:
    """What a drafter holds all the time."""
    shape, each, role = facts.drafter, facts.drafter.each_bytes, ("drafter", index)
    weights = shape.parameters
    yield Line(place, "weights", weights * each, f"{each} bytes a weight", *role)
    if not facts.emulated:  # on the host the loaded target's own are used
        frozen = (1 if facts.target.tied else 2) * shape.vocab * shape.hidden * each
        yield Line(place, "frozen embedding and head", frozen, "the target's, for the loss", *role)
        yield Line(place, "cuBLAS workspaces", 2 * workspace_bytes, "forward and backward", *role)
    if index == 0:
        masters = 0 if each == float_bytes else weights * float_bytes
        yield Line(place, "float32 masters", masters, "4 bytes a weight, at the first drafter")
        yield Line(
            place, "Adam's moments", 2 * weights * float_bytes, "8 bytes a weight, at the first drafter"
        )


Entry = tuple[str, int, str]  # name, bytes, why


def _worst_moment(facts: Facts, index: int) -> tuple[str, list[Entry]]:
    """The moment of a drafter in which most comes together, and what does."""
    moments = _moments(facts, index)
    name = max(moments, key=lambda name: sum(size for _, size, _ in moments[name]))
    return name, moments[name]


def _moments(facts: Facts, index: int) -> dict[str, list[Entry]]:
    work = DrafterWork(
        shape=facts.drafter,
        batch=facts.batch,
        compiled=facts.compiled_drafter,
        fused_loss=not facts.emulated,
        checkpointing=facts.checkpointing,
        chunk_blocks=facts.chunk_blocks,
    )
    sums = ("gradients", facts.drafter.parameters * float_bytes, "float32, summed over a window")
    waiting, arriving = [sums] if facts.several_batches else [], _summing(facts, index)
    kept = ("activations", total(work.kept()), f"{work.slots} slots, {work.context} context tokens")
    head = (*work.closing(), *work.head())
    backward = (*work.recomputed(), *work.backward())
    return {
        "head": [*waiting, *arriving, kept, ("logits", total(head), _largest(head))],
        "backward": [
            *waiting,
            *arriving,
            kept,
            ("gradients in the making", total(backward), _largest(backward)),
        ],
        "optimizer step": [sums, *arriving],
    }


def _summing(facts: Facts, index: int) -> list[Entry]:
    """What the leader holds for the sum over drafters: what arrives from other devices, while it trains."""
    elsewhere = sum(place != facts.drafters[0] for place in facts.drafters[1:])
    if index or not elsewhere:
        return []
    size = elsewhere * facts.drafter.parameters * float_bytes
    return [("gradients of other drafters", size, f"float32, of {elsewhere} on other devices")]


def _largest(terms: tuple[Term, ...]) -> str:
    term = max(terms, key=lambda term: term.bytes)
    return f"most for {term.name}"


def _in_flight_lines(facts: Facts) -> Iterator[Line]:
    """Tapped states on their way, wherever they wait."""
    item, choice = facts.item_bytes, facts.transport
    each = f"of {item / 1e6:.0f} MB"
    slabs = 0
    for index, place in enumerate(facts.targets):
        away = choice.path == "pinned" or any(home != place for home in _homes(facts, index))
        count = send_buffers if away and choice.path != "pageable" else 1
        yield Line(place, "send buffers", count * item, f"{count} {each}", "target", index, passing=True)
        slabs += send_buffers * (choice.path == "pinned")
    for index, place in enumerate(facts.drafters):
        count = states_in_training + (0 if choice.path == "pageable" else _waiting(facts, index))
        why = f"{count} {each}: in training, queued, and before a full queue"
        yield Line(place, "received states", count * item, why, "drafter", index, passing=True)
    slab = min(facts.token_budget, facts.data_tokens) * facts.token_bytes
    yield Line(host, "slabs of pinned memory", slabs * slab, f"{slabs} of {slab / 1e6:.0f} MB", passing=True)
    if choice.path == "pageable":
        queues = 1 if choice.queue == "shared" else len(facts.drafters)
        count = queues * choice.depth + len(facts.targets) + len(facts.drafters)
        why = f"{count} {each}: queued, and in the hands of stages"
        yield Line(host, "queued states", count * item, why, passing=True)


def _homes(facts: Facts, target: int) -> tuple[str, ...]:
    """Places that a target sends to."""
    if facts.transport.dispatch == "local":
        return (facts.drafters[target % len(facts.drafters)],)
    return facts.drafters


def _waiting(facts: Facts, drafter: int) -> int:
    """Batches that have arrived at a drafter's device and are not in its hands, when queues are full."""
    targets, drafters = len(facts.targets), len(facts.drafters)
    if facts.transport.queue == "shared":
        return -(-(facts.transport.depth + targets) // drafters)
    # Each target may stand before the full queue with one more.
    local = facts.transport.dispatch == "local"
    senders = sum(not local or target % drafters == drafter for target in range(targets))
    return facts.transport.depth + senders


def _with_host(facts: Facts, lines: list[Line]) -> tuple[str, list[Line]]:
    """The worst moment of the host, and all lines: those of stages that run there as far as it has them."""
    training = [_batches_waiting(facts), *_kept_for_drafters(facts), *_held_out(facts)]
    moments = {"training": training, "writing a checkpoint": [*training, *_checkpoint(facts)]}
    passing = sum(line.bytes for line in lines if line.place == host and line.passing)
    sums = {name: passing + sum(size for _, size, _ in found) for name, found in moments.items()}
    moments["loading"] = _loading(facts)
    sums["loading"] = sum(size for _, size, _ in moments["loading"])
    worst = max(sums, key=lambda name: sums[name])
    if worst == "loading":  # nothing passes yet
        lines = [line for line in lines if line.place != host or not line.passing]
    return worst, lines + [Line(host, name, size, why) for name, size, why in moments[worst]]


def _loading(facts: Facts) -> list[Entry]:
    loaded = facts.target.loaded_parameters * facts.target.each_bytes
    # On logical devices these become the drafters' weights, counted there.
    drafters = 0 if facts.emulated else facts.drafter.parameters * float_bytes * len(facts.drafters)
    return [
        ("target as loaded", loaded, "before it is copied to devices"),
        ("drafters as made", drafters, "float32, before they are copied to devices"),
    ]


def _kept_for_drafters(facts: Facts) -> list[Entry]:
    """On logical devices all drafters use the loaded target's own embedding and head."""
    if not facts.emulated:
        return []
    shape = facts.target
    frozen = (1 if shape.tied else 2) * shape.vocab * shape.hidden * shape.each_bytes
    return [("frozen embedding and head", frozen, "the target's, for the loss of all drafters")]


def _held_out(facts: Facts) -> list[Entry]:
    if not facts.held_out_bytes:
        return []
    return [("states of documents held out", facts.held_out_bytes, "kept for evaluations")]


def _batches_waiting(facts: Facts) -> Entry:
    slots = facts.batch.anchors * facts.drafter.block_size
    each = 32 * facts.batch.tokens + 12 * slots
    count = facts.prefetch_depth + 1
    return ("prefetched batches", count * each, f"{count} of {each / 1e6:.1f} MB")


def _checkpoint(facts: Facts) -> list[Entry]:
    if facts.emulated or not facts.checkpoints:
        return []
    size = 3 * facts.drafter.parameters * float_bytes
    return [("checkpoint on its way to disk", size, "masters and moments")]


def _slack_lines(lines: list[Line]) -> Iterator[Line]:
    for place in sorted({line.place for line in lines} - {host}):
        passing = sum(line.bytes for line in lines if line.place == place and line.passing)
        why = f"{slack_share:.0%} of what comes and goes"
        yield Line(place, slack_name, int(slack_share * passing), why)
        yield Line(place, code_name, late_code_bytes, "outside torch's allocator")


@dataclass(frozen=True, slots=True)
class Lever:
    """A change of the configuration that needs less memory and trains the same."""

    setting: str
    facts: Facts


def levers(facts: Facts) -> Iterator[Lever]:
    """What could be changed, the cheapest for throughput first."""
    if facts.chunk_blocks == 0 or facts.chunk_blocks > fewest_chunk_blocks:
        yield Lever(
            f"objective.chunk_blocks={fewest_chunk_blocks}", replace(facts, chunk_blocks=fewest_chunk_blocks)
        )
    if facts.transport.depth > 1:
        yield Lever("transport.depth=1", replace(facts, transport=replace(facts.transport, depth=1)))
    if facts.transport.path == "pageable":
        yield Lever("transport.path=peer", replace(facts, transport=replace(facts.transport, path="peer")))
    if not facts.checkpointing:
        yield Lever("drafter.checkpointing=layers", replace(facts, checkpointing=True))
    half = facts.token_budget // 2
    if half >= facts.longest:
        smaller = replace(facts, token_budget=half, batch=facts.batch.halved())
        yield Lever(f"pipeline.token_budget={half}", smaller)


def find_remedy(facts: Facts, fits: Callable[[Ledger], bool]) -> tuple[str, ...] | None:
    """The settings that make a plan fit: one if one is enough, else the cheapest few; None if none do."""
    for lever in levers(facts):
        if fits(plan_memory(lever.facts)):
            return (lever.setting,)
    chosen: dict[str, str] = {}  # by knob: the budget may be halved again and again
    while (cheapest := next(levers(facts), None)) is not None:
        chosen[cheapest.setting.partition("=")[0]] = cheapest.setting
        facts = cheapest.facts
        if fits(plan_memory(facts)):
            return tuple(chosen.values())
    return None
