"""Memory of every device and the host in another setting: the run's own plan made again, and corrected.

The plan is arithmetic over shapes that run.json holds. Where more was seen than was planned, the plan is
raised in proportion; it is never lowered, since readings of an allocator miss its peaks. Knows nothing of
throughput.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dflash.contract.activations import BatchShape
from dflash.contract.config import TrainConfig
from dflash.contract.memory_plan import Facts, Ledger, host, plan_memory
from profiler.ceilings import used_gpus
from profiler.forecast.setting import Setting
from profiler.records import RecordError, decode
from profiler.run import Run


@dataclass(frozen=True, slots=True)
class PlaceMemory:
    """What a device or the host will need. Bytes."""

    place: str
    planned_bytes: int
    corrected_bytes: int | None  # by the peak that was seen; None: none was
    why: str  # what it was corrected by, or why it was not


@dataclass(frozen=True, slots=True)
class MemoryForecast:
    """Of all places; none, with the reason, where the run does not hold what that takes."""

    places: tuple[PlaceMemory, ...]
    reason: str | None = None


def read_facts(run: Run) -> Facts | None:
    """What the run's plan was made of; None where the run does not say."""
    plan = run.manifest.get("memory_plan")
    facts = plan.get("facts") if isinstance(plan, Mapping) else None
    try:
        return decode(Facts, facts) if isinstance(facts, Mapping) else None
    except RecordError:
        return None


def forecast_memory(run: Run, config: TrainConfig) -> MemoryForecast:
    """Memory of the run if it had that configuration."""
    facts = read_facts(run)
    if facts is None:
        return MemoryForecast((), "run.json does not hold what the memory plan was made of")
    now, then = plan_memory(facts), plan_memory(refit_facts(facts, config))
    peaks = _seen_peaks(run, facts)
    return MemoryForecast(tuple(_place(place, then, now, peaks) for place in then.places))


def fits_devices(run: Run, config: TrainConfig) -> bool:
    """Whether the plan for another configuration fits every GPU; what is not known is no obstacle."""
    sizes = [int(gpu["memory_bytes"]) for gpu in used_gpus(run.manifest) if gpu.get("memory_bytes")]
    places = forecast_memory(run, config).places
    needed = max((place.planned_bytes for place in places if place.place != host), default=0)
    return not sizes or needed <= min(sizes)


def refit_facts(facts: Facts, config: TrainConfig) -> Facts:
    """The facts with the places, transport, depths and budget of another configuration."""
    setting, emulated = Setting.of(config), facts.emulated
    name = (lambda _place: host) if emulated else "cuda:{}".format
    return replace(
        facts,
        targets=tuple(name(place) for place in setting.target_places),
        drafters=tuple(name(place) for place in setting.drafter_places),
        transport=config.transport_choice,
        batch=_batch(facts, config),
        several_batches=config.window.tokens > config.pipeline.token_budget * setting.drafters,
        checkpointing=config.drafter.checkpointing == "layers",
        chunk_blocks=config.objective.chunk_blocks,
        token_budget=config.pipeline.token_budget,
        prefetch_depth=config.pipeline.prefetch_depth,
        checkpoints=config.run.checkpoint_every >= 0,
    )


def _batch(facts: Facts, config: TrainConfig) -> BatchShape:
    """The largest batch under another budget: as many documents of the same kind as fill it in proportion."""
    factor, batch = config.pipeline.token_budget / facts.token_budget, facts.batch
    if factor == 1.0:
        return batch
    count = max(round(len(batch.documents) * factor), 1)
    documents = (batch.documents * (count // len(batch.documents) + 1))[:count]
    if batch.rows == 1:  # flat: one row as wide as the batch
        return replace(batch, documents=documents, width=sum(tokens for tokens, _ in documents))
    return replace(batch, documents=documents, rows=max(round(batch.rows * factor), 1))


def _seen_peaks(run: Run, facts: Facts) -> dict[str, float]:
    """The most that each place was seen to hold, as far as the plan counts it: the allocator's own figure."""
    if facts.emulated:
        return {}  # a CPU process holds libraries that no plan counts
    events = run.events
    gauges = events[(events["kind"] == "gauge") & (events["name"] == "allocated_bytes")]
    peaks = gauges.groupby(gauges["device"].astype(str))["value"].max()
    return {str(place): float(value) for place, value in peaks.items() if value > 0}


def _place(place: str, then: Ledger, now: Ledger, peaks: Mapping[str, float]) -> PlaceMemory:
    planned = then.needed_bytes(place)
    if place == host or not peaks:
        return PlaceMemory(place, planned, None, "no peak was seen that the plan could be held to")
    # A place of the same roles tells most; else what all places say together.
    same = [p for p in peaks if p in now.places and _roles(now, p) == _roles(then, place)]
    chosen = same or [p for p in peaks if p in now.places]
    if not chosen:
        return PlaceMemory(place, planned, None, "the devices seen are not those planned")
    factor = max(sum(peaks[p] for p in chosen) / sum(now.allocated_bytes(p) for p in chosen), 1.0)
    beside = planned - then.allocated_bytes(place)
    corrected = round(then.allocated_bytes(place) * factor) + beside
    why = "no more was seen than planned" if factor == 1.0 else f"× {factor:.2f}, as seen"
    return PlaceMemory(place, planned, corrected, f"{why} on {', '.join(chosen)}")


def _roles(ledger: Ledger, place: str) -> tuple[str, ...]:
    return tuple(sorted({line.role for line in ledger.lines if line.place == place and line.role}))
