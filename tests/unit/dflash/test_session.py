"""What a run says to people and to programs, and who may have left."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dflash.contract.arrowlog import ArrowLog, read_log
from dflash.contract.config import load_config
from dflash.contract.rundir import create_run
from dflash.session import Session, print_document, say
from tests.small_training import on_logical_devices


@pytest.mark.parametrize(
    ("stream", "talk"),
    [("stderr", lambda: say("step 1/60")), ("stdout", lambda: print_document({"status": "finished"}))],
)
def test_a_reader_who_has_left_does_not_end_a_training(
    monkeypatch: pytest.MonkeyPatch, stream: str, talk: Callable[[], None]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)  # `dflash-train run | head`
    with os.fdopen(writer, "w") as left:
        monkeypatch.setattr(sys, stream, left)
        talk()
        talk()


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_document_survives_any_encoding(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    print_document({"run": "läufe/\udcff"})  # a path that is not UTF-8
    assert json.loads(written.getvalue()) == {"run": "läufe/\udcff"}


def test_a_signal_more_while_the_end_of_a_run_is_written_does_not_keep_it_from_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = ArrowLog.close

    def interrupt_and_close(log: ArrowLog) -> None:
        signal.raise_signal(signal.SIGINT)
        close(log)

    monkeypatch.setattr(ArrowLog, "close", interrupt_and_close)
    session = Session(
        create_run(tmp_path / "run", command=["t"]),
        load_config(None, on_logical_devices),
        prepare_trainer=lambda *_, **__: signal.raise_signal(signal.SIGINT),  # type: ignore[arg-type, return-value]
    )
    try:
        code, document = session.carry_out()
    finally:
        session.interruption.remove()
    assert (code, document["status"], session.run.manifest()["status"]) == (130, "stopped", "stopped")


def test_a_run_says_which_rows_it_does_not_train_and_counts_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [
        [
            {"role": "user", "content": f"what is {i}?"},
            {"role": "assistant", "content": f"it is {i}, or {-i}"},
        ]
        for i in range(12)
    ]
    rows += [[{"role": "user", "content": f"and {i}?"}] for i in range(3)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    changes = (f"data.path={data}", "run.max_steps=1", "data.held_out=0.3", "run.evaluate_every=0")
    session = Session(
        create_run(tmp_path / "run", command=["t"]), load_config(None, (*on_logical_devices, *changes))
    )
    try:
        code, _ = session.carry_out()
    finally:
        session.interruption.remove()
    assert code == 0
    counted = json.loads((tmp_path / "run/run.json").read_text())["data"]
    held_out = counted.pop("documents_held_out")
    assert counted == {"rows_read": 15, "rows_usable": 12, "rows_refused": 3, "documents_cut": 0}
    assert 0 < held_out < 12
    err = capfd.readouterr().err
    assert "warning: 3 of 15 rows are not trained: 3 × " in err
    assert "`dflash-train check-data` lists the rows" in err
    assert f"held out: {held_out} documents, none evaluated (run.evaluate_every=0)" in err
    (log,) = (tmp_path / "run/events").glob("*.arrow")
    warnings = [row["note"] for row in read_log(log)[0].to_pylist() if row["name"] == "warning"]
    assert [text for text in warnings if text.startswith("3 of 15 rows are not trained")]
