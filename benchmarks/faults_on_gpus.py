"""The diagnosis on sicknesses that need a GPU: planted for real in a trainer, each run named for what it is.

    python benchmarks/faults_on_gpus.py --out DIR [--gpus 1] [--limit-s 200] [--tiny]

Qwen3-8B shapes with random weights and tokens. Healthy runs; states copied through pageable memory; numbers
read back after every forward; and an allocator in pieces: from some window on, a target takes after each
forward so many blocks that are larger than any that was given back, while the process may have little more
memory than it has, so that torch gives its cache back to the driver and asks again. What a fault costs is
measured against the healthy runs of the page; where that is under 10 %, a run that is called healthy is right
as well. All runs go into one archive. `--tiny` tries the page on logical devices, which have no allocator:
what acts on it does nothing there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch

from benchmarks.lent_roles import LentRoles
from benchmarks.recorded_run import pack, rates, record_here
from benchmarks.result_file import write_result
from benchmarks.whatif_on_gpus import make_documents_of, shape_of
from dflash.contract.config import TrainConfig, load_config
from dflash.contract.rundir import RunDir
from dflash.trainer import Trainer
from profiler.examination import examine

healthy: Final = "target-bound-healthy"
costly: Final = 0.1  # of the throughput: what takes less need not be named
block_bytes: Final = 4 << 30  # of the first one that the allocator is asked for
step_bytes: Final = 4 << 20  # that each is larger than the one before
most_steps: Final = 256  # then begin anew with an empty cache
quiet_batches: Final = 32  # before the allocator is disturbed: windows to compare with
windows: Final = 26


@dataclass(frozen=True, slots=True)
class Case:
    """One run: what is planted, with which knobs, and what it should be called."""

    name: str
    causes: tuple[str, ...]  # any of them first is right
    knobs: tuple[str, ...] = ()
    plant: Callable[[Trainer], None] | None = None


class Pieces:
    """Takes blocks that fit nowhere, so many after each forward of a target."""

    def __init__(self, blocks: int) -> None:
        self._blocks, self._batches, self._taken = blocks, 0, 0

    def act(self) -> None:
        """On a target's thread, after a forward was enqueued."""
        self._batches += 1
        if self._batches < quiet_batches or not torch.cuda.is_available():
            return
        if self._batches == quiet_batches:
            limit = torch.cuda.memory_reserved() + block_bytes + block_bytes // 2
            total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
            torch.cuda.set_per_process_memory_fraction(min(limit / total, 1.0))
        for _ in range(self._blocks):
            if self._taken == most_steps:  # there is no room for a larger one: from the first one on again
                torch.cuda.empty_cache()
                self._taken = 0
            torch.empty(block_bytes + self._taken * step_bytes, dtype=torch.uint8, device="cuda")
            self._taken += 1


def in_pieces(blocks: int) -> Callable[[Trainer], None]:
    """An allocator in pieces from some window on."""
    return lambda trainer: after_forwards(trainer, Pieces(blocks).act)


def read_back(trainer: Trainer) -> None:
    """Wait for the device after every forward, as reading a number of its result does."""
    if not trainer.devices.emulated:
        after_forwards(trainer, lambda: torch.cuda.current_stream().synchronize())


def after_forwards(trainer: Trainer, act: Callable[[], None]) -> None:
    """Let every target do that after it has enqueued a forward."""
    for target in trainer.targets:
        target.forward = partial(_forward, target.forward, act)  # type: ignore[method-assign]


def _forward(forward: Callable[[Any], Any], act: Callable[[], None], batch: Any) -> Any:
    taps = forward(batch)
    act()
    return taps


fragmented: Final = ("allocator-fragmentation",)
# Both sides copy on their own thread; on a GPU that they share either holds up the other.
copied: Final = ("sync-d2h-on-critical-path", "h2d-on-drafter-critical-path")
cases: Final = (
    Case("healthy", (healthy,)),
    Case("allocator in pieces, 24 blocks a batch", fragmented, plant=in_pieces(24)),
    Case("a number read back after every forward", ("per-step-scalar-sync",), plant=read_back),
    Case("allocator in pieces, 8 blocks a batch", fragmented, plant=in_pieces(8)),
    Case("healthy again", (healthy,)),
    Case("states through pageable memory", copied, ("transport=host", "run.max_steps=15")),
    Case("allocator in pieces, 1 block a batch", fragmented, plant=in_pieces(1)),
    Case("healthy at the end", (healthy,)),
)


@dataclass
class Page:
    """The roles, and what was found so far."""

    choice: argparse.Namespace
    runs: Path
    started_s: float = field(default_factory=time.monotonic)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        tiny = self.choice.tiny
        self.roles = LentRoles(torch.device("cpu" if tiny else "cuda:0"))
        self.shape, self.target, self.scale = shape_of(tiny, self.choice.layers)
        self.documents = make_documents_of(self.shape, self.scale)

    def configure(self, case: Case) -> TrainConfig:
        """One target and one drafter, in windows of three batches."""
        layers = 2 if self.choice.tiny else 5
        return load_config(
            None,
            [
                f"target.model=random:{self.target}",
                f"drafter.layers={layers}",
                f"drafter.tap_count={layers}",
                f"drafter.block_size={4 if self.choice.tiny else 16}",
                f"objective.anchors_per_document={2 if self.choice.tiny else 16}",
                f"data.max_length={700 // self.scale}",
                f"pipeline.token_budget={8192 // self.scale}",
                f"window.tokens={24_600 // self.scale}",
                "transport=peer",
                f"devices.gpus={self.choice.gpus}",
                "devices.memory_plan=warn",
                "data.held_out=0",  # else every run ends with an evaluation
                "run.epochs=40",
                f"run.max_steps={windows}",
                "run.checkpoint_every=-1",
                "run.console_every_s=30",
                *case.knobs,
            ],
        )

    def measure(self, number: int, case: Case) -> None:
        """One row, whatever becomes of it."""
        row: dict[str, Any] = {"planted": case.name, "causes": list(case.causes)}
        path = self.runs / f"{number:02}"
        try:
            with undone(self.roles):
                record_here(
                    path,
                    self.configure(case),
                    partial(self.roles.prepare, documents=self.documents),
                    cores=len(os.sched_getaffinity(0)),
                    ready=partial(self._make_ready, case),
                )
            found = examine(path).diagnosis
            named = [finding.cause for finding in found.findings if finding.supported]
            row |= {**rates(found.throughput), "named": named, "headline": found.headline}
        except Exception as error:  # noqa: BLE001 - one row's failure must not cost the others
            row |= {"measured": None, "reason": f"{type(error).__name__}: {error}"[:500], "named": []}
        self.rows.append(row)
        print(f"{self.elapsed_s:6.1f} s  {case.name}: {row.get('headline', row['reason'])}", flush=True)
        self.write()

    def _make_ready(self, case: Case, _run: RunDir, trainer: Trainer) -> None:
        if case.plant is not None:
            case.plant(trainer)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started_s

    def write(self) -> None:
        """All so far: the figures, and the runs in one archive."""
        facts = {name: getattr(self.choice, name) for name in ("layers", "tiny")}
        document = {**facts, "gpus_used": self.choice.gpus, **score(self.rows), "elapsed_s": self.elapsed_s}
        write_result(self.choice.out / "faults_on_gpus.json", "faults_on_gpus", document)
        pack(self.runs, self.choice.out / "runs.tar.xz")


@contextmanager
def undone(roles: LentRoles) -> Iterator[None]:
    """Whatever is planted in the block is gone after it."""
    try:
        yield
    finally:
        for target in roles.targets.values():
            vars(target).pop("forward", None)
        if torch.cuda.is_available():
            torch.cuda.set_per_process_memory_fraction(1.0)
            torch.cuda.empty_cache()


def score(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What each fault cost against the healthy runs, and whether its run was named for it."""
    paces = [row["measured"] for row in rows if row["causes"] == [healthy] and row["measured"]]
    usual = statistics.median(paces) if paces else None
    judged = [{**row, **judge(row, usual)} for row in rows]
    counted = [row for row in judged if row["right"] is not None]
    return {"runs": len(counted), "right": sum(row["right"] for row in counted), "rows": judged}


def judge(row: dict[str, Any], usual: float | None) -> dict[str, Any]:
    """`cost`: a share of the throughput; `right` is None where the run did not come to anything."""
    if row["measured"] is None or usual is None:
        return {"cost": None, "right": None}
    cost, first = 1.0 - row["measured"] / usual, next(iter(row["named"]), None)
    return {"cost": cost, "right": first in row["causes"] or (cost < costly and first == healthy)}


def main() -> int:
    """Run, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--layers", type=int, default=18, help="of the target")
    parser.add_argument("--limit-s", type=float, default=200.0, help="no run begins later")
    parser.add_argument("--tiny", action="store_true")
    choice = parser.parse_args()
    choice.out.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="faults-"))
    try:
        page = Page(choice, place / "runs")
        for number, case in enumerate(cases):
            if page.elapsed_s < choice.limit_s:
                page.measure(number, case)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
