"""Which runs forecasts are held against: families of settings around a base, and sick runs with their fixes.

Knows nothing of how a run is made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.small_runs import small_config
from dflash.contract.config import TrainConfig, all_knobs, load_config
from dflash.contract.errors import ConfigError
from dflash.contract.knobs import parse_assignments
from dflash.faults.catalogue import catalogue

paced_cores: Final = 64  # told of paced runs: they sleep, so that none waits for another's core


@dataclass(frozen=True, slots=True)
class Case:
    """One run: what is planted, and knobs on top of those of its kind, as on a command line.

    Where nothing is planted, not even `none`, stages compute at the CPU's own pace.
    """

    request: str
    changes: str = ""
    repeat: int = 0

    @property
    def paced(self) -> bool:
        """Whether stages take their time by sleeping."""
        return bool(self.request)

    @property
    def name(self) -> str:
        """A directory's; no two cases have the same."""
        again = f" again {self.repeat}" if self.repeat else ""
        return "-".join(re.findall(r"[\w.]+", f"{self.request or 'computed'} {self.changes}{again}"))

    def with_changes(self, changes: str) -> Case:
        """The same with further knobs."""
        return Case(self.request, f"{self.changes} {changes}".strip())

    def configure(self, data: Path) -> TrainConfig:
        """Its configuration; `data`: a file of conversations."""
        knobs = parse_assignments(self.changes.split(), all_knobs)
        if not self.paced:
            return load_config(None, computed_knobs).replacing(knobs)
        return small_config(data).replacing(paced_knobs).replacing(knobs)


# Links of paced runs, in tokens/s of the states' 640 bytes: beside a target's 3,200 they matter.
paced_knobs: Final = {
    "data.max_length": 128,
    "window.tokens": 1024,
    "devices.pageable_gigabytes_per_s": 8_000 * 640 / 1e9,
    "devices.pinned_gigabytes_per_s": 20_000 * 640 / 1e9,
    "devices.link_gigabytes_per_s": 50_000 * 640 / 1e9,
}
computed_knobs: Final = (
    "data.max_length=128",
    "pipeline.token_budget=256",
    "window.tokens=512",
    "drafter.layers=1",
    "devices.pageable_gigabytes_per_s=0.005",
    "devices.pinned_gigabytes_per_s=0.02",
    "devices.link_gigabytes_per_s=0.05",
    "run.epochs=50",
    "run.checkpoint_every=-1",
)


@dataclass(frozen=True, slots=True)
class Family:
    """A base, and what it is changed to."""

    base: Case
    settings: tuple[str, ...]

    @property
    def cases(self) -> tuple[Case, ...]:
        """All but the base."""
        return tuple(self.base.with_changes(changes) for changes in self.settings)


_common: Final = (
    "split=1-1",
    "split=3-1",
    "split=2-2",
    "split=3-2",
    "split=colocated-2",
    "split=1-1 devices.gpus=1",
    "schedule=lockstep",
    "transport=peer",
    "transport=pinned",
    "transport=shared",
    "transport=peer split=3-1",
    "transport=peer split=2-2",
    "transport=pinned split=3-2",
    "transport=shared split=2-2",
    "transport=peer split=4-1",
    "transport=peer schedule=lockstep",
    "transport=pinned schedule=lockstep split=2-2",
    "transport.depth=1",
    "transport.depth=6 split=2-2",
    "token_budget=128",
    "token_budget=512",
    "token_budget=512 transport=peer",
    "prefetch_depth=1",
    "pageable_gigabytes_per_s=0.0025",
    "window.tokens=2048",
)
families: Final = {
    "targets": Family(Case("none:0", "transport=host"), _common),  # targets are slow, and copy themselves
    "drafters": Family(Case("slow-drafter:0.3", "transport=host"), _common),
    "computed": Family(
        Case(""),
        (
            "transport=peer",
            "transport=pinned",
            "transport=shared",
            "split=2-1",
            "split=3-1",
            "split=2-1 transport=peer",
            "split=3-1 transport=peer",
            "split=2-2",
            "split=2-2 transport=peer",
            "split=1-2 transport=pinned",
            "split=2-1 transport=pinned",
            "transport.depth=1",
            "transport.depth=6",
            "split=2-1 transport=peer transport.depth=1",
            "split=colocated-1",
            "split=colocated-2",
            "schedule=lockstep",
            "schedule=lockstep transport=peer",
            "schedule=lockstep split=2-1 transport=pinned",
            "token_budget=512",
            "token_budget=512 transport=peer",
            "pageable_gigabytes_per_s=0.0025",
            "pageable_gigabytes_per_s=0.02",
            "transport=peer link_gigabytes_per_s=0.004",
        ),
    ),
}

sick_faults: Final = (
    "sync-copy",
    "upload",
    "shared-queue",
    "deep-queue",
    "slow-data",
    "slow-drafter",
    "slow-target",
    "remote-buffers",
    "scalar-sync",
    "small-batches",
    "slow-kernels",
    "slow-gradients",
    "python-packing",
)
other_fixes: Final = ("split=3-1", "split=2-2", "token_budget=512", "transport.depth=6")


def still_sick(case: Case, changes: str) -> Case | None:
    """A sick run with further knobs, and with a sickness that takes as many seconds a token as before.

    Strengths are shares of the throughput, and so mean other seconds in another split. None where no strength
    means the same, or the knobs cannot be.
    """
    name, _, number = case.request.partition(":")
    changed = case.with_changes(changes)
    try:
        changed.configure(Path())
    except ConfigError:
        return None
    if name == "shared-queue" and changed.configure(Path()).split.drafters == 1:
        return replace(changed, request="none:0")  # its links are gone
    before, after = (one.configure(Path()).split for one in (case, changed))
    kept, targets = 1.0 - float(number), before.targets / after.targets
    if name == "slow-data":
        kept *= targets
    elif name in ("upload", "deep-queue"):
        kept *= targets * after.drafters / before.drafters
    elif name in ("slow-target", "remote-buffers"):
        kept = 1.0 - (1.0 - kept) * targets
    if not 0.0 < 1.0 - kept < catalogue[name].below:
        return None
    return replace(changed, request=f"{name}:{1.0 - kept:.6g}")


def sick_cases(strengths: int) -> Iterator[tuple[str, Case]]:
    """Each fault at its strongest, then weaker; in the configuration in which it acts."""
    for rank in range(strengths):
        for name in sick_faults:
            fault = catalogue[name]
            # Links as fast as a sick run's own are declared: what is slow is the fault.
            knobs: dict[str, Any] = {
                "devices.pageable_gigabytes_per_s": 50.0,
                "devices.pinned_gigabytes_per_s": 50.0,
                "devices.link_gigabytes_per_s": 50.0,
            }
            knobs |= {k: v for k, v in fault.knobs.items() if k != "run.max_steps"}
            budget = int(knobs.get("pipeline.token_budget", 256))
            knobs = {"window.tokens": max(4 * budget, 1024), **knobs}
            changes = " ".join(f"{k}={_as_text(v)}" for k, v in knobs.items())
            yield name, Case(f"{name}:{fault.strengths[-1 - rank]}", changes)


def _as_text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
