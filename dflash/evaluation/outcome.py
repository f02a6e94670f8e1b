"""What an evaluation came to: the document of `dflash-train evaluate --json`, and the same for people.

docs/evaluation.md explains its figures. Knows nothing of how they are measured.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
import transformers

from dflash.contract.rundir import utc_now
from dflash.contract.versions import own_version
from dflash.data.documents import Documents
from dflash.data.loading import embedded_name
from dflash.evaluation.acceptance import AnswerAcceptance, SlotAcceptance, summarize
from dflash.evaluation.intervals import find_intervals, level
from dflash.evaluation.subject import Subject
from dflash.evaluation.texts import Text
from dflash.evaluation.whole_target import WholeTarget
from dflash.export import count_drafts

schema: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be measured."""

    answers: Literal["greedy", "data"] = "greedy"
    prompts: int = 64  # at most
    max_new_tokens: int = 256  # of a greedy answer
    batch: int = 8  # prompts answered at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredText:
    """A text with what a drafter would have brought to it."""

    text: Text
    results: tuple[AnswerAcceptance, ...]  # by answer
    answer_tokens: int
    own_tokens: int  # of those, the ones that the target chooses in one pass over the text


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Everything that the document is made of."""

    subject: Subject
    stored_dtype: str
    target: WholeTarget
    request: Request
    documents: Documents
    part: Literal["all", "held out"]
    warnings: Sequence[str]
    texts: Sequence[MeasuredText]

    def to_json(self) -> dict[str, Any]:
        """For JSON."""
        config, greedy = self.subject.config, self.request.answers == "greedy"
        return {
            "schema": schema,
            "evaluated_utc": utc_now(),
            "drafter": {
                "path": str(self.subject.path.absolute()),
                "step": self.subject.step,
                "stored_dtype": self.stored_dtype,
                "dtype": str(self.target.dtype).removeprefix("torch."),
                **count_drafts(self.subject.drafter.spec),
            },
            "target": {
                "model": config.target.model,
                "tokenizer": config.target.tokenizer,
                "device": str(self.target.device),
            },
            "data": {
                "path": config.data.path or embedded_name,
                "part": self.part,
                "documents": len(self.documents.items),
                "identity": self.documents.identity,
            },
            "answers": self.request.answers,
            "prompts": len(self.texts),
            "max_new_tokens": self.request.max_new_tokens if greedy else None,
            "acceptance": self._acceptance(),
            "answer_tokens": sum(text.answer_tokens for text in self.texts),
            "own_tokens": sum(text.own_tokens for text in self.texts),
            "warnings": [*self.warnings, *self._doubts()],
            "versions": _versions(),
            "texts": [self._text(text) for text in self.texts],
        }

    def _acceptance(self) -> dict[str, Any]:
        by_text = [text.results for text in self.texts]
        figures = summarize([result for results in by_text for result in results], self._block_size)
        intervals = find_intervals(by_text)
        return {
            **{name: getattr(figures, name) for name in ("answers", "blocks", "tokens")},
            "pooled": figures.pooled,
            "mean_of_means": figures.mean_of_means,
            "interval_level": level,
            "pooled_interval": intervals.pooled,
            "mean_of_means_interval": intervals.mean_of_means,
            "interval_reason": intervals.reason,
            "slots": [_slot(slot) for slot in figures.slots],
        }

    @property
    def _block_size(self) -> int:
        return self.subject.drafter.spec.block_size

    def _doubts(self) -> list[str]:
        """What a reader of the figures should know."""
        doubts = []
        if self.subject.trained_on == self.documents.identity:
            doubts.append("the drafter was trained on these texts; --data names others")
        elif not self.subject.config.data.path and self.part == "all":
            doubts.append(
                f"the {embedded_name} is measured, for nothing names other texts; it says little of a "
                "drafter that was trained on others: --data names them"
            )
        total, own = (sum(getattr(t, n) for t in self.texts) for n in ("answer_tokens", "own_tokens"))
        if self.request.answers == "greedy" and own < total:
            doubts.append(
                f"{total - own} of {total} answer tokens are not what one pass over the text would choose: "
                "kernels of different shapes decide near-ties otherwise"
            )
        return doubts

    def _text(self, measured: MeasuredText) -> dict[str, Any]:
        text, greedy = measured.text, self.request.answers == "greedy"
        first = text.answers[0].start
        tokens = {"prompt": text.ids[:first].tolist(), "answer": text.ids[first:].tolist()}
        return {
            "file": text.file,
            "line": text.line,
            "answer_tokens": measured.answer_tokens,
            "own_tokens": measured.own_tokens,
            "lengths": [list(result.lengths) for result in measured.results],
            **(tokens if greedy else {}),
        }


def _slot(slot: SlotAcceptance) -> dict[str, Any]:
    counts = {name: getattr(slot, name) for name in ("slot", "accepted", "blocks")}
    return {
        **counts,
        "share": slot.accepted / slot.blocks if slot.blocks else None,
        "anywhere_accepted": slot.anywhere_accepted,
        "anywhere": slot.anywhere,
    }


def _versions() -> dict[str, str | None]:
    return {
        "dflash-tune": own_version(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def describe(document: dict[str, Any]) -> str:
    """The document for people."""
    drafter, found = document["drafter"], document["acceptance"]
    how = {"greedy": "the target's own greedy answers", "data": "the data's own answers (teacher-forced)"}
    part = f"{document['prompts']}{' held out' * (document['data']['part'] == 'held out')}"
    step = "" if drafter["step"] is None else f", step {drafter['step']}"
    target, total, drafts = document["target"], document["answer_tokens"], drafter["drafted_tokens"]
    pooled, means = (_figure(found, name) for name in ("pooled", "mean_of_means"))
    lines = [
        f"{drafter['path']}{step}",
        f"target           {target['model']} on {target['device']}, {drafter['dtype']}",
        f"texts            {part} of {document['data']['path']}, {how[document['answers']]}",
        f"acceptance       {pooled} pooled; {means} mean of means",
        f"blocks           {found['blocks']} of {drafts} drafts each, for {found['tokens']} tokens",
        f"target's choice  {_share(document['own_tokens'], total)} of the answers' {total} tokens",
        "slot  accepted",
    ]
    for slot in found["slots"]:
        share = _share(slot["accepted"], slot["blocks"])
        lines.append(f"{slot['slot']:>4}  {share:>8}  {slot['accepted']} of {slot['blocks']} blocks")
    if found["interval_reason"]:
        lines.append(f"no intervals: {found['interval_reason']}")
    return "\n".join([*lines, *(f"warning: {text}" for text in document["warnings"])])


def _figure(found: dict[str, Any], name: str) -> str:
    if found[name] is None:
        return "n/a (no answer has a second token)"
    interval = found[f"{name}_interval"]
    if interval is None:
        return f"{found[name]:.2f}"
    return (
        f"{found[name]:.2f} ({found['interval_level']:.0%} interval {interval[0]:.2f} to {interval[1]:.2f})"
    )


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "n/a"
