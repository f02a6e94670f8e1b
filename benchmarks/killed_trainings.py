"""Trainings killed at random moments and resumed until the data end.

    python -m benchmarks.killed_trainings --kills 50 [--seed 0] [--out FILE]

Every training is a real one on logical devices that saves after every window. SIGKILL strikes it somewhere;
the next one goes on from the newest checkpoint there is, in every other chain under another split, budget and
transport. After every kill the newest named checkpoint must load. At the end of a chain the ledger
(`training_ledger.py`) must hold every document once an epoch and every step once, and where the split stayed
1-1 the last checkpoint must be that of a run that nothing killed, bit for bit. Exit 1 otherwise.

Processes are forked from one that has imported torch, which takes longer than they live.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.training_ledger import Leg, keeping_ledger, settle
from dflash.checkpoints.files import step_directories
from dflash.checkpoints.manifest import read_manifest
from dflash.checkpoints.reading import FoundCheckpoint, find_checkpoint
from dflash.contract.config import TrainConfig, load_config
from dflash.contract.errors import CheckpointError
from tests.small_training import on_logical_devices

root = Path(__file__).parents[1]
epochs = 2
small = (
    *on_logical_devices,
    "drafter.tap_count=1",
    "drafter.intermediate=32",
    "drafter.heads=2",
    "drafter.kv_heads=1",
    "drafter.head_dim=16",
    "data.max_length=32",
    "window.tokens=200",
    f"run.epochs={epochs}",
    "run.max_steps=0",
    "run.checkpoint_every=1",
)
same = ("split=1-1", "pipeline.token_budget=128", "transport=peer")
others = (
    ("split=2-1", "pipeline.token_budget=64", "transport=host"),
    ("split=1-2", "pipeline.token_budget=96", "transport=shared"),
    ("split=1-1", "pipeline.token_budget=200", "transport=pinned"),
    same,
)
kills_at_most = 6  # of one chain: then it may end
start_share = 0.15  # of the kills strike before the first batch is trained
limit_s = 300.0


@dataclass(slots=True, kw_only=True)
class Tally:
    """What was done, and what went wrong."""

    chains: int = 0
    chains_under_other_splits: int = 0
    kills: int = 0
    kills_while_saving: int = 0  # they left a leftover
    kills_before_the_first_step: int = 0
    steps_trained_again: int = 0
    documents: int = 0  # times epochs, of all chains
    newest_not_loading: int = 0
    documents_lost: int = 0
    documents_or_steps_repeated: int = 0
    leftovers_not_removed: int = 0
    updates_not_steps: int = 0
    not_whole: int = 0
    weights_that_differ: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether nothing went wrong."""
        return not any(
            (
                self.newest_not_loading,
                self.documents_lost,
                self.documents_or_steps_repeated,
                self.leftovers_not_removed,
                self.updates_not_steps,
                self.not_whole,
                self.weights_that_differ,
            )
        )


class Nursery:
    """A process that has imported everything, and forks a trainer whenever it is asked. Use with `with`."""

    def __enter__(self) -> Nursery:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.killed_trainings", "--nursery"],
            cwd=root,
            # Without parallelism tokenizers start no thread, and a process without threads may be forked.
            env=os.environ
            | {"PYTHONPATH": str(root), "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._process.stdout.close()

    def start(self, run: Path, config: TrainConfig) -> int:
        """The pid of a trainer of that run. `end` must follow."""
        (run.parent / f"{run.name}.toml").write_text(config.to_toml())
        assert self._process.stdin is not None
        print(run, file=self._process.stdin, flush=True)
        return self._read()

    def end(self) -> int:
        """Wait for the trainer's end; its exit code, or minus the signal that ended it.

        Until then its pid is its own, also where it has ended.
        """
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        return self._read()

    def _read(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


def be_the_nursery() -> int:
    """Fork a trainer for each line of stdin, one after the other; tell its pid, then, asked, how it ended."""
    import transformers.models.qwen3.modeling_qwen3  # noqa: F401 - so that no trainer has to

    import dflash.session  # noqa: F401
    from dflash.__main__ import main as train
    from dflash.data.tokenizer import open_embedded_tokenizer

    open_embedded_tokenizer()

    for line in sys.stdin:
        run = Path(line.rstrip("\n"))
        pid = os.fork()
        if pid == 0:
            # os.dup2 also redirects what libraries write.
            log = os.open(run.parent / f"{run.name}.log", os.O_WRONLY | os.O_CREAT)
            for stream in (0, 1, 2):
                os.dup2(log, stream)
            with keeping_ledger(run.parent / f"{run.name}.ledger"):
                os._exit(train(["run", f"{run}.toml", "--run-dir", str(run)]))
        print(pid, flush=True)
        sys.stdin.readline()
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    return 0


def configure(directory: Path, *changes: str) -> TrainConfig:
    """Of a training under `directory`."""
    return load_config(None, (*small, f"data.cache={directory / 'cache'}", *changes))


@dataclass
class Chain:
    """Runs that go on from each other, and how far they have come."""

    directory: Path
    chance: random.Random
    splits: Sequence[tuple[str, ...]]
    tally: Tally
    legs: list[Leg] = field(default_factory=list)
    newest: FoundCheckpoint | None = None
    source: Path | None = None  # the run that it lies in

    def configure(self) -> TrainConfig:
        """Of the next run."""
        resume = () if self.source is None else (f"run.resume={self.source}",)
        return configure(self.directory.parent, *self.chance.choice(self.splits), *resume)

    def next_run(self) -> Path:
        run = self.directory / f"run-{len(self.legs)}"
        first = 0 if self.newest is None else self.newest.manifest.position.step
        self.legs.append(Leg(self.directory / f"{run.name}.ledger", first))
        return run

    def look_after(self, run: Path) -> None:
        """What a run has left: its newest checkpoint must load, and beside it nothing may stay."""
        if self.source is not None and self.legs[-1].lines():  # it has come past the clean-up
            self.tally.leftovers_not_removed += len(leftovers(self.source))
        self.tally.kills_while_saving += bool(leftovers(run))
        if not step_directories(run / "checkpoints"):
            return
        try:
            found = find_checkpoint(str(run), older=False)
            found.read_optimizer()
        except CheckpointError as error:
            print(error.render(), file=sys.stderr)
            self.tally.newest_not_loading += 1
            return
        self.newest, self.source = found, run


def leftovers(run: Path) -> list[Path]:
    """What a killed writer left in a run."""
    return list((run / "checkpoints").glob(".step-*"))


def play(directory: Path, kills: int, seed: int) -> Tally:
    """Chains of trainings under `directory` until `kills` of them were killed."""
    tally, chance = Tally(), random.Random(seed)
    with Nursery() as nursery:
        straight = directory / "straight"
        nursery.start(straight, configure(directory, *same))
        began_s = time.monotonic()
        tally.not_whole += nursery.end() != 0
        whole_s = time.monotonic() - began_s
        while tally.kills < kills and tally.chains < 10 * kills:
            chain_directory = directory / f"chain-{tally.chains}"
            chain_directory.mkdir()
            other = tally.chains % 2 == 1
            chain = Chain(chain_directory, chance, others if other else (same,), tally)
            tally.chains += 1
            tally.chains_under_other_splits += other
            for _ in range(min(chance.randint(2, kills_at_most), kills - tally.kills)):
                if not _kill_one(nursery, chain, whole_s):
                    break
            _finish(nursery, chain)
            _check(chain, straight, bit_for_bit=not other)
            print(json.dumps(asdict(tally)), file=sys.stderr, flush=True)
    return tally


def _kill_one(nursery: Nursery, chain: Chain, whole_s: float) -> bool:
    """Start the next run and kill it: while it starts, or while it trains and saves.

    Whether the chain goes on: not where the run, or the one before, had come to the end of the data.
    """
    config, run = chain.configure(), chain.next_run()
    pid = nursery.start(run, config)
    leg = chain.legs[-1]
    early = chain.chance.random() < start_share
    moment_s = chain.chance.uniform(0.0, 0.25 * whole_s)
    until_s = time.monotonic() + limit_s
    while not early and not leg.lines() and time.monotonic() < until_s:
        time.sleep(0.01)
    time.sleep(moment_s)
    os.kill(pid, signal.SIGKILL)  # a zombie at the worst: the nursery waits for it when it is asked
    code = nursery.end()
    chain.tally.kills += code == -signal.SIGKILL
    if code not in (0, -signal.SIGKILL):
        chain.tally.not_whole += not _was_done(chain)
        return False
    chain.tally.kills_before_the_first_step += not leg.lines()
    chain.look_after(run)
    return code != 0


def _finish(nursery: Nursery, chain: Chain) -> None:
    config, run = chain.configure(), chain.next_run()
    nursery.start(run, config)
    if nursery.end() != 0 and not _was_done(chain):
        chain.tally.not_whole += 1
    chain.look_after(run)


def _was_done(chain: Chain) -> bool:
    """Whether the run before had come to the end of the data: then nothing is left to train."""
    if chain.newest is None or chain.newest.manifest.position.epoch < epochs:
        return False
    chain.legs.pop()
    return True


def _check(chain: Chain, straight: Path, *, bit_for_bit: bool) -> None:
    """The books of a chain that has come to its end."""
    tally, newest = chain.tally, chain.newest
    goal = find_checkpoint(str(straight))
    total = goal.manifest.position.step
    documents = len(Path(load_config(None, small).data.path).read_text().splitlines())
    account = settle(chain.legs, total)
    tally.documents += documents * epochs
    tally.documents_lost += account.lost(documents, epochs)
    tally.documents_or_steps_repeated += account.repeated()
    tally.not_whole += sorted(account.steps) != list(range(total))
    trained = sum("made" in line for leg in chain.legs for line in leg.lines())
    tally.steps_trained_again += trained - len(account.steps)
    if newest is None or newest.path.name != f"step-{total}":
        tally.not_whole += 1
        return
    tally.updates_not_steps += newest.manifest.optimizer_updates != total
    if bit_for_bit:
        names = ("model.safetensors", "optimizer.safetensors")
        files: list[Any] = [
            [read_manifest(path).files[n] for n in names] for path in (newest.path, goal.path)
        ]
        tally.weights_that_differ += files[0] != files[1]


def main() -> int:
    """Play the chains, or (with --nursery) be what trainers are forked from."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--nursery", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.nursery:
        return be_the_nursery()
    with tempfile.TemporaryDirectory(prefix="killed-trainings-") as directory:
        tally = play(Path(directory), arguments.kills, arguments.seed)
    print(json.dumps(asdict(tally), indent=1))
    if arguments.out is not None:
        from benchmarks.result_file import write_result

        write_result(arguments.out, "killed_trainings", asdict(tally))
    return 0 if tally.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
