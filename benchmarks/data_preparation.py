"""How fast conversations become documents, and that memory does not grow with them.

    python benchmarks/data_preparation.py --out FILE [--rows 25000 200000] [--workers 0 2]

For each number of rows a JSONL file is made of words of the embedded text, drawn with a seed (one question
and one answer a row, 10 to 40 words each), and a process of its own prepares it into an empty cache, and
then takes it out of there; the smallest file with each number of workers, the others with the last. Then it
reads every token of every document, as an epoch does. `peak mb` is the most memory that the process itself
asked for (anonymous, looked at every 20 ms); pages of mapped files are not in it, since the system may take
them back at any time. `before mb` is what it had when it began, torch and tokenizer included. Worker
processes are not counted: each holds a tokenizer and a few hundred rows.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.result_file import write_result
from dflash.contract.config import TrainConfig, load_config
from dflash.data.embedded_text import embedded_conversations
from dflash.data.loading import load_documents
from dflash.data.tokenizer import open_tokenizer

look_s: Final = 0.02


def write_rows(path: Path, rows: int) -> None:
    """A JSONL file of that many conversations; equal for equal numbers."""
    draw = random.Random(7)
    texts = (turn["content"] for row in embedded_conversations() for turn in row["messages"])
    words = sorted({word for text in texts for word in text.split()})
    with path.open("w", encoding="utf-8") as file:
        for number in range(rows):
            question, answer = (" ".join(draw.choices(words, k=draw.randint(10, 40))) for _ in range(2))
            messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            file.write(json.dumps({"id": f"row-{number}", "messages": messages}) + "\n")


class MemoryWatch:
    """The anonymous memory of this process, looked at by a thread."""

    def __init__(self) -> None:
        self.before_mb = self.peak_mb = anonymous_mb()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(look_s):
            self.peak_mb = max(self.peak_mb, anonymous_mb())


def anonymous_mb() -> float:
    """Of this process, now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise OSError("/proc/self/status has no RssAnon")


def cpu_s() -> float:
    """Of this process and its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def measure(config: TrainConfig) -> dict[str, Any]:
    """One preparation in this process, and a pass over all tokens."""
    tokenizer = open_tokenizer(config.target, config.data)
    watch = MemoryWatch()
    begin, cpu_begin = time.perf_counter(), cpu_s()
    documents = load_documents(config, tokenizer)
    prepared_s, used_s = time.perf_counter() - begin, cpu_s() - cpu_begin
    begin = time.perf_counter()
    supervised = sum(int(item.loss_mask.sum()) + 0 * int(item.ids[-1]) for item in documents.items)
    pass_s = time.perf_counter() - begin
    watch.close()
    assert supervised == int(documents.columns.supervised.sum())
    return {
        "rows": documents.books.rows_read,
        "tokens": documents.tokens,
        "seconds": round(prepared_s, 2),
        "cpu_s": round(used_s, 2),
        "rows_per_s": round(documents.books.rows_read / prepared_s),
        "tokens_per_s": round(documents.tokens / prepared_s),
        "rows_per_cpu_s": round(documents.books.rows_read / used_s),
        "load": round(os.getloadavg()[0], 1),
        "pass_s": round(pass_s, 2),
        "before_mb": round(watch.before_mb, 1),
        "peak_mb": round(watch.peak_mb, 1),
        "identity": documents.identity,
    }


def measure_apart(path: Path, workers: int, cache: Path) -> dict[str, Any]:
    """`measure` in a process of its own."""
    command = [sys.executable, __file__, "--measure", str(path), str(workers), str(cache)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """All of it, as one JSON document."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[25_000, 200_000])
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--measure", nargs=3, metavar=("PATH", "WORKERS", "CACHE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        path, workers, cache = options.measure
        knobs = (f"data.path={path}", f"data.workers={workers}", f"data.cache={cache}")
        print(json.dumps(measure(load_config(None, knobs))))
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for count in options.rows:
            path = Path(folder) / f"rows-{count}.jsonl"
            write_rows(path, count)
            identities = set()
            for workers in options.workers if count == min(options.rows) else options.workers[-1:]:
                for how in ("prepared", "cached")[: 1 + (workers == options.workers[-1])]:
                    found = measure_apart(path, workers, Path(folder) / f"cache-{workers}")
                    identities.add(found.pop("identity"))
                    file_mb = round(path.stat().st_size / 1e6, 1)
                    rows.append({"what": how, "workers": workers, "file_mb": file_mb, **found})
            assert len(identities) == 1, identities
    document = write_result(options.out, "data preparation", {"rows": rows})
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
