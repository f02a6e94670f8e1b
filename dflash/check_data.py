"""What the data of a configuration would give, found without a target: counts, refusals, one sample.

Answers "is my data understood?" before a GPU is held. Knows nothing of training.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, get_args

import numpy as np

from dflash.anchors import anchor_candidates
from dflash.contract.config import TrainConfig
from dflash.contract.rundir import printable
from dflash.data.documents import Document, Documents
from dflash.data.loading import embedded_name, load_documents
from dflash.data.tokenizer import ChatTokenizer, open_tokenizer
from dflash.packing import LayoutKind, lay_out, pack
from dflash.window import plan_windows, steps_in_all

refusals_shown = 20
sample_tokens = 400


def check_data(config: TrainConfig) -> dict[str, Any]:
    """The document described in docs/data.md, ready for JSON. Raises DataError and ConfigError."""
    tokenizer = open_tokenizer(config.target, config.data)
    documents = load_documents(config, tokenizer)
    books, lengths = documents.books, documents.lengths
    return {
        "path": config.data.path or embedded_name,
        "tokenizer": {"name": tokenizer.name, "vocab_size": tokenizer.vocab_size},
        "rows_read": books.rows_read,
        "rows_usable": books.rows_usable,
        "refused": [
            {"file": row.file, "line": row.line, "id": row.id, "reason": row.reason} for row in books.refused
        ],
        "warnings": list(books.warnings),
        "tokens": documents.tokens,
        "supervised_share": books.supervised_share,
        "distinct_texts": books.distinct_texts,
        "lengths": _histogram(documents),
        "anchors": _count_anchors(documents, config),
        "epoch": _first_epoch(documents, config),
        "steps": steps_in_all(lengths, config),
        "sample": _sample(documents.items[0], tokenizer),
    }


def describe(document: dict[str, Any]) -> str:
    """The same for people."""
    epoch, anchors, refused = document["epoch"], document["anchors"], document["refused"]
    lines = [
        f"{document['path']}: {document['rows_usable']} of {document['rows_read']} rows can be trained",
        f"tokens        {document['tokens']}, {document['supervised_share']:.1%} supervised",
        f"texts         {document['distinct_texts']} different",
        f"anchors       {anchors['drawn']} drawn of {anchors['candidates']} candidates in an epoch",
        f"windows       {epoch['windows']} in an epoch, {document['steps']} steps in all",
    ]
    for layout, fill in epoch["layouts"].items():
        lines.append(
            f"{layout:<13} {fill['batches']} batches, {fill['budget_fill']:.0%} of the token budget used, "
            f"{fill['row_fill']:.0%} of the rows real tokens"
        )
    lines += [f"{b['from']:>6}–{b['to']:<6} {b['documents']} documents" for b in document["lengths"]]
    lines += [f"warning: {warning}" for warning in document["warnings"]]
    for row in refused[:refusals_shown]:
        name = f" ({row['id']})" if row["id"] else ""
        lines.append(f"refused: {row['file']}, line {row['line']}{name}: {row['reason']}")
    if len(refused) > refusals_shown:
        lines.append(f"refused: {len(refused) - refusals_shown} more; --json lists all")
    marked = "".join(f"⟦{p['text']}⟧" if p["supervised"] else p["text"] for p in document["sample"]["parts"])
    lines += [f"sample, line {document['sample']['line']}, what is trained in ⟦⟧:", marked]
    return printable("\n".join(lines))


def _histogram(documents: Documents) -> list[dict[str, int]]:
    """Documents by length, in ranges that double."""
    exponents = np.floor(np.log2(documents.lengths)).astype(int)
    return [
        {"from": 2 ** int(e), "to": 2 ** (int(e) + 1) - 1, "documents": int((exponents == e).sum())}
        for e in range(exponents.min(), exponents.max() + 1)
    ]


def _count_anchors(documents: Documents, config: TrainConfig) -> dict[str, int]:
    candidates = np.array([len(anchor_candidates(document.loss_mask)) for document in documents.items])
    drawn = np.minimum(candidates, config.objective.anchors_per_document)
    return {"candidates": int(candidates.sum()), "drawn": int(drawn.sum()), "fewest": int(drawn.min())}


def _first_epoch(documents: Documents, config: TrainConfig) -> dict[str, Any]:
    """How the windows of epoch 0 fill their batches, in each layout."""
    windows = plan_windows(documents.lengths, config.window.tokens, seed=config.data.seed, epoch=0)
    sizes = [documents.lengths[members] for members in windows]
    budget = config.pipeline.token_budget
    layouts = {}
    for kind in get_args(LayoutKind):
        batches = [lengths[group] for lengths in sizes for group in pack(lengths, budget, kind)]
        processed = sum(lay_out(lengths, kind).processed_tokens for lengths in batches)
        layouts[kind] = {
            "batches": len(batches),
            "budget_fill": documents.tokens / (len(batches) * budget),
            "row_fill": documents.tokens / processed,
        }
    return {"windows": len(windows), "layouts": layouts}


def _sample(document: Document, tokenizer: ChatTokenizer) -> dict[str, Any]:
    """The beginning of a document as text, in parts that are trained or not."""
    ids, mask = document.ids[:sample_tokens], document.loss_mask[:sample_tokens]
    edges = [0, *(np.flatnonzero(mask[1:] != mask[:-1]) + 1).tolist(), len(ids)]
    parts = [{"supervised": bool(mask[a]), "text": tokenizer.decode(ids[a:b])} for a, b in pairwise(edges)]
    return {"file": document.file, "line": document.line, "cut": len(document.ids) > len(ids), "parts": parts}
