"""`dflash-train evaluate`: acceptance lengths of a drafter at temperature 0, on answers to prompts.

The answers are the target's own, written greedily here, or those that stand in the data (*teacher-forced*).
Either way one pass of the target over each finished text gives the states, and `acceptance` does the rest.
Targets of every kind go this way, hybrids too. Knows nothing of training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch

from dflash.contract.config import TrainConfig
from dflash.contract.errors import DFlashError, ran_out_of_memory
from dflash.data.documents import Document, Documents
from dflash.data.loading import load_documents
from dflash.data.slices import hold_out
from dflash.data.tokenizer import open_tokenizer
from dflash.devices import fitting, wants_cuda
from dflash.drafter import Drafter
from dflash.evaluation.acceptance import measure_text
from dflash.evaluation.outcome import MeasuredText, Outcome, Request
from dflash.evaluation.subject import check_fits, open_subject
from dflash.evaluation.texts import Tell, Text, answered_texts, choose_documents, given_texts
from dflash.evaluation.whole_target import WholeTarget
from dflash.kernels import slow_recurrence
from dflash.mask_token import check_tokenizer_fits
from dflash.target_shapes import TargetSpec
from dflash.target_weights import read_config

tell_every = 16  # texts


def evaluate(source: str, settings: Sequence[str], request: Request, tell: Tell) -> dict[str, Any]:
    """The document described in docs/evaluation.md, of a run, a checkpoint or an export.

    `settings`: knob=value; `tell` is given lines for people. Raises UsageErrors for what cannot be read or
    does not fit.
    """
    subject = open_subject(source, settings)
    config, spec = subject.config, subject.drafter.spec
    device = torch.device("cuda:0" if wants_cuda(config) else "cpu")
    tokenizer = open_tokenizer(config.target, config.data)
    target_spec = TargetSpec.of(read_config(config.target.model), config.target.model)
    check_fits(spec, target_spec)
    if (slow := slow_recurrence(target_spec)) is not None:
        tell(f"warning: {slow}")
    check_tokenizer_fits(tokenizer, target_spec.vocab)
    part, documents = pick_documents(load_documents(config, tokenizer, tell), config, subject.trained_on)
    target = WholeTarget(config.target, device, spec.taps)
    stops = target.stop_ids | {token for token in (tokenizer.special.eos,) if token is not None}
    chosen = choose_documents(documents.items, request.prompts)
    stored = subject.drafter.dtype
    with fitting(device, "the drafter beside the target"):
        drafter = subject.drafter.to(
            device, target.dtype
        )  # as engines do: what a bfloat16 target is served with
    texts = _texts(chosen, target, stops, request, tell)
    outcome = Outcome(
        subject=subject,
        stored_dtype=str(stored).removeprefix("torch."),
        target=target,
        request=request,
        documents=documents,
        part=part,
        warnings=subject.doubt_tokenizer(tokenizer),
        texts=_measure_all(texts, target, drafter, tell),
    )
    return outcome.to_json()


def pick_documents(
    documents: Documents, config: TrainConfig, trained_on: str | None
) -> tuple[Literal["all", "held out"], Documents]:
    """Of the data that a drafter was trained on those that were held out of it; of other data all."""
    trained, held = hold_out(documents, config)
    if held is not None and trained.identity == trained_on:
        return "held out", held
    return "all", documents


def _texts(
    chosen: Sequence[Document], target: WholeTarget, stops: frozenset[int], request: Request, tell: Tell
) -> Iterator[Text]:
    if request.answers == "data":
        return given_texts(chosen)
    return answered_texts(
        chosen,
        target,
        max_new_tokens=request.max_new_tokens,
        stops=stops,
        at_once=request.batch,
        tell=tell,
    )


def _measure_all(
    texts: Iterator[Text], target: WholeTarget, drafter: Drafter, tell: Tell
) -> list[MeasuredText]:
    """In the order of the data."""
    measured = list[MeasuredText]()
    try:
        for text in texts:
            measured.append(measure_with_target(text, target, drafter))
            if len(measured) % tell_every == 0:
                tell(f"measured {len(measured)} texts")
    except (RuntimeError, MemoryError) as error:
        if not ran_out_of_memory(f"{type(error).__name__}: {error}"):
            raise
        raise DFlashError(
            f"out of memory: {next(iter(str(error).splitlines()), type(error).__name__)}",
            where=str(target.device),
            remedy="lower --batch, --max-new-tokens or data.max_length",
        ) from None
    return sorted(measured, key=lambda one: (one.text.file, one.text.line))


def measure_with_target(text: Text, target: WholeTarget, drafter: Drafter) -> MeasuredText:
    """What the drafter would bring to a text. It is on the target's device, in its dtype."""
    states = target.read(text.ids)
    results = measure_text(
        drafter, target.embedding, target.head, taps=states.taps, ids=text.ids, answers=text.answers
    )
    places = torch.cat([torch.arange(answer.start, answer.end) for answer in text.answers])
    own = states.greedy[places - 1] == text.ids[places]
    return MeasuredText(text=text, results=results, answer_tokens=len(places), own_tokens=int(own.sum()))
