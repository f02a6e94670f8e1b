"""Compilations are told on the stage whose thread compiled; without a compiler nothing happens."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dflash.compilations import CompileWatch
from dflash.contract.events import Probe, event_schema


class Rows(list[dict[str, Any]]):
    """Takes rows as a log does."""

    def append(self, row: Any) -> None:
        super().append(dict(zip(event_schema.names, row, strict=True)))


@pytest.fixture
def rows() -> Rows:
    return Rows()


@pytest.fixture
def watch(rows: Rows) -> Iterator[CompileWatch]:
    import torch._dynamo  # as whatever compiles has done

    watch = CompileWatch(Probe(rows, "trainer"))
    assert watch.install()
    yield watch
    watch.remove()
    torch._dynamo.reset()


def run_in_thread(watch: CompileWatch, probe: Probe, lengths: list[int], *, dynamic: bool | None) -> None:
    """A stage with a compiled toy in it, fed with batches of these lengths."""

    def toy(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    compiled = torch.compile(toy, backend="eager", dynamic=dynamic)
    go = threading.Event()

    def work() -> None:
        go.wait()
        with torch._dynamo.config.patch(recompile_limit=64):
            for length in lengths:
                compiled(torch.ones(length))

    thread = threading.Thread(target=work)
    thread.start()
    watch.add_thread(thread, probe)
    go.set()
    thread.join()


def test_every_new_shape_is_a_recompile_of_its_stage(watch: CompileWatch, rows: Rows) -> None:
    """C117."""
    probe = Probe(rows, "target", 1, "logical:1")
    run_in_thread(watch, probe, [*range(2, 32), *range(2, 32)], dynamic=False)
    spans = [row for row in rows if row["kind"] == "span"]
    assert {(row["name"], row["stage"], row["index"], row["device"]) for row in spans} == {
        ("compile", "target", 1, "logical:1")
    }
    assert len(spans) == 30
    assert all(row["dur_ns"] > 0 for row in spans)
    gauges = [row["value"] for row in rows if row["name"] == "recompiles"]
    assert gauges == list(range(1, 30))  # the first compilation of all is none


def test_dynamic_shapes_compile_once(watch: CompileWatch, rows: Rows) -> None:
    run_in_thread(watch, Probe(rows, "target"), list(range(2, 32)), dynamic=True)
    assert [row["name"] for row in rows] == ["compile"]


def test_stages_are_counted_apart_and_strangers_belong_to_the_trainer(
    watch: CompileWatch, rows: Rows
) -> None:
    run_in_thread(watch, Probe(rows, "target"), [2, 3, 4], dynamic=False)
    run_in_thread(watch, Probe(rows, "drafter"), [5, 6], dynamic=False)  # shapes new to all
    torch.compile(lambda x: x - 1, backend="eager")(torch.ones(2))
    last = {row["stage"]: row["value"] for row in rows if row["name"] == "recompiles"}
    assert last == {"target": 2, "drafter": 1}
    assert rows[-1]["stage"] == "trainer"


def test_after_remove_nothing_is_told(watch: CompileWatch, rows: Rows) -> None:
    watch.remove()
    run_in_thread(watch, Probe(rows, "target"), [2, 3], dynamic=False)
    assert rows == []


def test_the_compiler_is_not_imported_for_it(repository: Path) -> None:
    code = (
        "import sys; from dflash.compilations import CompileWatch; from dflash.contract.events import silent;"
        "assert not CompileWatch(silent).install(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=repository, check=True, timeout=60)


def test_time_spent_on_tuning_kernels_is_told_when_it_grows(
    watch: CompileWatch, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._dynamo.utils import compilation_time_metrics, dynamo_timed

    watch.look()
    watch.look()
    before = [row["value"] for row in rows if row["name"] == "autotune_s"]
    assert len(before) == 1, "told once, so that nothing is known from unknown"
    with dynamo_timed("CachingAutotuner.benchmark_all_configs"):  # as torch itself counts it
        pass
    watch.look()
    first, second = (row["value"] for row in rows if row["name"] == "autotune_s")
    assert second > first == before[0]
    assert second - first == pytest.approx(
        compilation_time_metrics["CachingAutotuner.benchmark_all_configs"][-1]
    )
    with monkeypatch.context() as patch:
        patch.delattr("torch._dynamo.utils.compilation_time_metrics")
        watch.look()
    assert len(rows) == 2, "a torch that does not count it tells nothing"
