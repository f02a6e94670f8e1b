"""Whether two runs may be compared by throughput, and what differs between them otherwise.

Runs are compared when they do the same work: `workload` in run.json. How long they ran is not part of that.
Knows nothing of times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dflash.contract.errors import UsageError
from profiler.run import Run

# Knobs of the training signal that say where a run begins and ends, not what a token costs.
_resume_knobs: Final = ("run.resume", "run.resume_data", "run.resume_damaged")
length_knobs: Final = ("run.epochs", "run.max_steps", "run.max_seconds", *_resume_knobs)
_surroundings: Final = ("versions", "kernels", "git")
_hardware: Final = ("cpu", "usable_cores", "memory_limit_bytes")
_shown_differences = 12
absent = "not recorded"


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that is not the same in both runs, in words."""

    name: str
    a: str
    b: str


def check_comparable(a: Run, b: Run) -> None:
    """Raise UsageError, with everything that differs, unless both runs did the same kind of work."""
    _check_emulation(a, b)
    differing = differences(_workload(a), _workload(b), leave_out=length_knobs)
    if differing:
        shown = [f"{d.name}: {d.a} in A, {d.b} in B" for d in differing[:_shown_differences]]
        more = len(differing) - len(shown)
        raise UsageError(
            "the runs do not do the same work, so their throughputs cannot be compared",
            where=f"A: {a.path}, B: {b.path}",
            found="; ".join(shown) + (f"; and {more} more" if more else ""),
            expected="one workload: all knobs that are not neutral to training, but the length of the run",
            remedy="record both runs with the same values of these knobs",
        )


def describe_differences(a: Run, b: Run) -> tuple[tuple[Difference, ...], tuple[Difference, ...]]:
    """Knobs that differ, and what differs in hardware, versions, kernels and code."""
    knobs = differences(a.config_values, b.config_values)
    return knobs, differences(_surroundings_of(a), _surroundings_of(b))


def differences(
    a: Mapping[str, Any], b: Mapping[str, Any], leave_out: tuple[str, ...] = ()
) -> tuple[Difference, ...]:
    """The keys whose values are not equal, sorted."""
    names = sorted((a.keys() | b.keys()) - set(leave_out))
    pairs = [(name, a.get(name, absent), b.get(name, absent)) for name in names]
    return tuple(
        Difference(name, _words(one), _words(two)) for name, one, two in pairs if not _same(one, two)
    )


def _same(one: Any, two: Any) -> bool:
    """Equality in which a tuple of this process is the list that JSON made of it."""
    return bool(_words(one) == _words(two)) if isinstance(one, list | tuple) else bool(one == two)


def _words(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_words, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return "unknown" if value is None else repr(value) if value == "" else str(value)


def _check_emulation(a: Run, b: Run) -> None:
    if a.emulated != b.emulated:
        kinds = {True: "emulated, on logical devices", False: "on GPUs", None: "not known to be either"}
        raise UsageError(
            "a run on logical devices says nothing of one on GPUs",
            where=f"A: {a.path}, B: {b.path}",
            found=f"A is {kinds[a.emulated]}; B is {kinds[b.emulated]}",
            expected="both emulated, or both on GPUs",
        )


def _workload(run: Run) -> Mapping[str, Any]:
    found = run.manifest.get("workload")
    if not isinstance(found, Mapping) or not found:
        raise UsageError(
            "the run does not say what its work was",
            where=str(run.path),
            found=f"workload {found!r} in run.json",
            expected="a table of what must be the same in runs that are compared",
            remedy="runs of dflash-train say it by themselves, once training has begun",
        )
    return found


def _surroundings_of(run: Run) -> dict[str, Any]:
    """{dotted name: value} of what a run had around it."""
    flat: dict[str, Any] = {}
    for part in _surroundings:
        table = run.manifest.get(part)
        for key, value in (table if isinstance(table, Mapping) else {}).items():
            flat[f"{part}.{key}"] = value
    hardware = run.manifest.get("hardware")
    if isinstance(hardware, Mapping):
        flat |= {f"hardware.{key}": hardware.get(key) for key in _hardware}
        gpus = hardware.get("gpus")
        if isinstance(gpus, list):
            flat["hardware.gpus"] = [str(gpu.get("name")) for gpu in gpus if isinstance(gpu, Mapping)]
    return flat
