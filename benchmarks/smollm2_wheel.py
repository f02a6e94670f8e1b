"""What z-lab's wheel makes of an exported drafter, in a process of its own, held to what we said of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

root = Path(__file__).resolve().parents[1]


def decode_with_wheel(
    texts: list[Any], drafter: Path, target: Path, *, tokens: int, paths: list[Path], limit_s: float
) -> Any:
    """The same prompts by speculative decoding of the wheel, and by the target alone."""
    import torch

    stops = json.loads((target / "generation_config.json").read_text(encoding="utf-8"))["eos_token_id"]
    job = {
        "drafter": str(drafter),
        "target": str(target),
        "device": "cuda:0" if torch.cuda.is_available() else "cpu",
        "threads": 2,
        "prompts": [text["tokens"]["prompt"] if "tokens" in text else text["prompt"] for text in texts],
        "max_new_tokens": tokens,
        "stops": stops if isinstance(stops, list) else [stops],
    }
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    program = [sys.executable, "-P", str(root / "benchmarks/smollm2_peer.py")]
    done = subprocess.run(
        program,
        input=json.dumps(job),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        cwd=drafter,
        env=environ,
        timeout=max(limit_s, 30),
    )
    if done.returncode != 0:
        sys.exit(f"the wheel ended with {done.returncode}")
    return json.loads(done.stdout)


def compare(texts: list[Any], told: Any) -> dict[str, Any]:
    """Our lengths and the target's own text against what the wheel did."""
    rows = told["rows"]
    lengths = [[length for answer in text["lengths"] for length in answer] for text in texts]
    theirs = [row["lengths"] for row in rows]
    drafted, plain = (sum(row[key] for row in rows) for key in ("drafted_s", "plain_s"))
    return {
        "prompts": len(rows),
        "same_lengths": sum(a == b for a, b in zip(lengths, theirs, strict=True)),
        "same_text_as_greedy": sum(row["drafted"] == row["plain"] for row in rows),
        "same_text_as_ours": sum(
            row["drafted"] == text["answer"] for row, text in zip(rows, texts, strict=True)
        ),
        "pooled_ours": round(sum(map(sum, lengths)) / sum(map(len, lengths)), 4),
        "pooled_wheel": round(sum(map(sum, theirs)) / sum(map(len, theirs)), 4),
        "seconds_drafted": round(drafted, 2),
        "seconds_plain": round(plain, 2),
        "times_as_fast_as_plain": round(plain / drafted, 3),
    }
