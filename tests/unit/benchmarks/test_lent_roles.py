"""Targets and drafters are built once and serve one trainer after another."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.drafter_case import make_documents
from benchmarks.lent_roles import LentRoles
from benchmarks.recorded_run import pack, record_here
from dflash.contract.config import load_config
from profiler.run import Run
from tests.small_training import on_logical_devices


def test_one_trainer_after_another_runs_on_the_same_roles(tmp_path: Path) -> None:
    roles = LentRoles(torch.device("cpu"))
    documents = make_documents([40] * 60, vocab=500)
    seen = []
    for number, split in enumerate(("2-1", "1-2", "1-1")):
        config = load_config(None, [*on_logical_devices, f"split={split}", "run.epochs=2"])

        def prepare(*arguments: object, **named: object) -> object:
            trainer = roles.prepare(*arguments, documents=documents, **named)  # type: ignore[arg-type]
            seen.append((list(trainer.targets), list(trainer.group.replicas)))
            return trainer

        record_here(tmp_path / "runs" / str(number), config, prepare, cores=2)  # type: ignore[arg-type]
        run = Run.open(tmp_path / "runs" / str(number))
        assert (run.events["name"] == "window").sum() == 3
        assert run.manifest["memory_plan"]["facts"]
    (targets, drafters), (targets_2, drafters_2), (targets_3, drafters_3) = seen
    assert len({*map(id, targets)}) == 2
    assert len({*map(id, drafters_2)}) == 2
    assert targets_2[0] is targets[0] is targets_3[0]
    assert drafters[0] is drafters_2[0] is drafters_3[0]
    pack(tmp_path / "runs", tmp_path / "runs.tar.xz")
    assert (tmp_path / "runs.tar.xz").stat().st_size > 1000
