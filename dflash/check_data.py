"""What the data of a configuration would give, found without a target: counts, refusals, one sample.

Answers "is my data understood?" before a GPU is held. Knows nothing of training.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Any, Final, get_args

import numpy as np

from dflash.anchors import draw_anchors
from dflash.contract.config import TrainConfig
from dflash.contract.rundir import printable
from dflash.data.documents import Document, Documents
from dflash.data.loading import embedded_name, load_documents
from dflash.data.slices import hold_out
from dflash.data.token_cache import TokenCache, cache_root
from dflash.data.tokenizer import ChatTokenizer, open_tokenizer
from dflash.packing import LayoutKind, lay_out, pack
from dflash.window import plan_windows, steps_in_all

refusals_shown: Final = 20
sample_tokens: Final = 400
most_documents: Final = 5000  # looked at for coverage, evenly over all
most_windows: Final = 2000  # packed for fill, the first ones of epoch 0


def check_data(config: TrainConfig, *, most_refused: int | None = None) -> dict[str, Any]:
    """The document described in docs/data.md, ready for JSON. Raises DataError and ConfigError.

    `most_refused`: how many refused rows it lists; None: all.
    """
    tokenizer = open_tokenizer(config.target, config.data)
    documents = load_documents(config, tokenizer)
    books = documents.books
    trained, held_out = hold_out(documents, config)
    return {
        "path": config.data.path or embedded_name,
        "tokenizer": {"name": tokenizer.name, "vocab_size": tokenizer.vocab_size},
        "rows_read": books.rows_read,
        "rows_usable": books.rows_usable,
        "refused": [
            {"file": row.file, "line": row.line, "id": row.id, "reason": row.reason}
            for row in islice(books.refused, most_refused)
        ],
        "warnings": list(books.warnings),
        "tokens": documents.tokens,
        "supervised_share": books.supervised_share,
        "distinct_texts": books.distinct_texts,
        "repeated_ids": books.repeated_ids,
        "documents_cut": books.documents_cut,
        "rows_too_long": books.rows_too_long,
        "lengths": _histogram(documents),
        "held_out": 0 if held_out is None else len(held_out.items),
        "anchors": _count_anchors(trained, config),
        "coverage": _measure_coverage(trained, config),
        "epoch": _first_epoch(trained, config),
        "steps": steps_in_all(trained.lengths, config),
        "cache": _describe_cache(config),
        "sample": _sample(documents.items[0], tokenizer),
    }


def describe(document: dict[str, Any]) -> str:
    """The same for people."""
    lines = [f"{document['path']}: {document['rows_usable']} of {document['rows_read']} rows can be trained"]
    lines += [f"{name:<13} {text}" for name, text in _facts(document)]
    lines += [f"{b['from']:>6}–{b['to']:<6} {b['documents']} documents" for b in document["lengths"]]
    lines += [f"warning: {warning}" for warning in document["warnings"]]
    lines += _refusal_lines(document)
    marked = "".join(f"⟦{p['text']}⟧" if p["supervised"] else p["text"] for p in document["sample"]["parts"])
    lines += [f"sample, line {document['sample']['line']}, what is trained in ⟦⟧:", marked]
    return printable("\n".join(lines))


def _facts(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Names and what is to be said of them."""
    epoch, anchors, coverage = document["epoch"], document["anchors"], document["coverage"]
    yield "tokens", f"{document['tokens']}, {document['supervised_share']:.1%} supervised"
    repeated = document["repeated_ids"]
    yield "texts", f"{document['distinct_texts']} different; {repeated} ids stand in more than one row"
    yield "too long", f"{document['documents_cut']} cut, {document['rows_too_long']} refused"
    if document["held_out"]:
        yield "held out", f"{document['held_out']} documents; what follows is of the others"
    drawn, fewest = anchors["drawn"], anchors["fewest"]
    yield (
        "anchors",
        f"{drawn} drawn of {anchors['candidates']} candidates in an epoch, {fewest} a document at least",
    )
    share, least = coverage["share"], coverage["least"]
    yield (
        "coverage",
        f"{share:.1%} of supervised tokens predicted in epoch 0, of each document {least:.1%} or more",
    )
    yield "windows", f"{epoch['windows']} in an epoch, {document['steps']} steps in all"
    for layout, fill in epoch["layouts"].items():
        used = f"{fill['budget_fill']:.0%} of the token budget used"
        yield layout, f"{fill['batches']} batches, {used}, {fill['row_fill']:.0%} of the rows real tokens"
    cache = document["cache"]
    if cache["directory"] is not None:
        size = f"{cache['bytes'] / 1e6:.1f} MB of {cache['entries']} data sets"
        yield "kept", f"{size} in {cache['directory']}; what a month has not used is removed"


def _refusal_lines(document: dict[str, Any]) -> Iterator[str]:
    for row in document["refused"][:refusals_shown]:
        name = f" ({row['id']})" if row["id"] else ""
        yield f"refused: {row['file']}, line {row['line']}{name}: {row['reason']}"
    more = document["rows_read"] - document["rows_usable"] - refusals_shown
    if more > 0:
        yield f"refused: {more} more; --json lists all"


def _describe_cache(config: TrainConfig) -> dict[str, Any]:
    """Where tokens are kept, and how much of all data sets."""
    root = cache_root(config.data.cache) if config.data.path else None
    if root is None:
        return {"directory": None, "entries": 0, "bytes": 0}
    kept = TokenCache.of(root)
    return {"directory": str(kept.directory), "entries": len(kept.entries()), "bytes": kept.size_bytes()}


def _histogram(documents: Documents) -> list[dict[str, int]]:
    """Documents by length, in ranges that double."""
    exponents = np.floor(np.log2(documents.lengths)).astype(int)
    return [
        {"from": 2 ** int(e), "to": 2 ** (int(e) + 1) - 1, "documents": int((exponents == e).sum())}
        for e in range(exponents.min(), exponents.max() + 1)
    ]


def _count_anchors(documents: Documents, config: TrainConfig) -> dict[str, int]:
    candidates = documents.columns.candidates
    drawn = np.minimum(candidates, config.objective.anchors_per_document)
    return {"candidates": int(candidates.sum()), "drawn": int(drawn.sum()), "fewest": int(drawn.min())}


def _measure_coverage(documents: Documents, config: TrainConfig) -> dict[str, Any]:
    """How many supervised tokens some block of epoch 0 predicts; of many documents, an even selection."""
    numbers = range(0, len(documents.items), -(-len(documents.items) // most_documents))
    covered = np.array([_covered(documents.items[number], number, config) for number in numbers], np.int64)
    supervised = documents.columns.supervised[list(numbers)]
    return {
        "documents": len(covered),
        "supervised_tokens": int(supervised.sum()),
        "predicted": int(covered.sum()),
        "share": float(covered.sum() / supervised.sum()),
        "least": float((covered / supervised).min()),
    }


def _covered(document: Document, number: int, config: TrainConfig) -> int:
    """Supervised tokens of a document that lie in a slot past the anchor of one of its blocks in epoch 0."""
    mask, limit = document.loss_mask, config.objective.anchors_per_document
    anchors = draw_anchors(mask, seed=config.data.seed, epoch=0, document=number, limit=limit)
    steps = np.zeros(len(mask) + 1, np.int64)
    np.add.at(steps, anchors + 1, 1)
    np.add.at(steps, np.minimum(anchors + config.drafter.block_size, len(mask)), -1)
    return int(((np.cumsum(steps)[:-1] > 0) & mask).sum())


def _first_epoch(documents: Documents, config: TrainConfig) -> dict[str, Any]:
    """How the windows of epoch 0 fill their batches, in each layout."""
    windows = plan_windows(documents.lengths, config.window.tokens, seed=config.data.seed, epoch=0)
    sizes = [documents.lengths[members] for members in windows[:most_windows]]
    tokens, budget = sum(int(lengths.sum()) for lengths in sizes), config.pipeline.token_budget
    layouts = {}
    for kind in get_args(LayoutKind):
        batches = [lengths[group] for lengths in sizes for group in pack(lengths, budget, kind)]
        processed = sum(lay_out(lengths, kind).processed_tokens for lengths in batches)
        layouts[kind] = {
            "batches": len(batches),
            "budget_fill": tokens / (len(batches) * budget),
            "row_fill": tokens / processed,
        }
    return {"windows": len(windows), "packed_windows": len(sizes), "layouts": layouts}


def _sample(document: Document, tokenizer: ChatTokenizer) -> dict[str, Any]:
    """The beginning of a document as text, in parts that are trained or not."""
    ids, mask = document.ids[:sample_tokens], document.loss_mask[:sample_tokens]
    edges = [0, *(np.flatnonzero(mask[1:] != mask[:-1]) + 1).tolist(), len(ids)]
    parts = [{"supervised": bool(mask[a]), "text": tokenizer.decode(ids[a:b])} for a, b in pairwise(edges)]
    return {"file": document.file, "line": document.line, "cut": len(document.ids) > len(ids), "parts": parts}
