"""`dflash-profile export-trace` writes where it is told and says where that was."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

from tests.played_pipeline import play

Call = Callable[..., tuple[int, str, str]]


def test_the_trace_goes_into_the_run_or_where_told(call: Call, tmp_path: Path) -> None:
    run = play(tmp_path / "run", windows=10)
    code, out, err = call("dflash-profile", "export-trace", str(run))
    assert (code, out, err) == (0, f"{run}/traces/run.json.gz\n", "")
    assert json.loads(gzip.decompress(Path(out.strip()).read_bytes()))["traceEvents"]
    code, out, _ = call("dflash-profile", "export-trace", str(run), "--out", "plain.json", "--json")
    document = json.loads(out)
    assert (code, document["trace"], document["left_out"]) == (0, "plain.json", 0)
    assert len(json.loads(Path("plain.json").read_text())["traceEvents"]) == document["events"]


def test_what_is_no_run_is_refused(call: Call, tmp_path: Path) -> None:
    code, out, err = call("dflash-profile", "export-trace", str(tmp_path))
    assert (code, out) == (2, "")
    assert "not a run directory" in err
