"""On a GPU an evaluation has the acceptance lengths that decoding had on a CPU (tests/data/golden)."""

import json
from pathlib import Path

import pytest
import torch

from dflash.contract.sections import TargetConfig
from dflash.drafter_files import open_drafter
from dflash.evaluation.acceptance import Answer, measure_text
from dflash.evaluation.whole_target import WholeTarget

pytestmark = pytest.mark.gpu
golden = Path(__file__).parents[1] / "data" / "golden"
requests = json.loads((golden / "infer_golden.json").read_text())["generate"]
cuda = torch.device("cuda")


def test_texts_and_lengths_are_those_of_decoding():
    target = WholeTarget(TargetConfig(model=str(golden / "tiny_target"), dtype="float32"), cuda, (1, 3, 5))
    drafter = open_drafter(golden / "tiny_drafter").to(cuda)
    written = target.answer([request["prompt"] for request in requests], 32, frozenset())
    assert written == [request["new_tokens"] for request in requests]
    for request, answer in zip(requests, written, strict=True):
        ids = torch.tensor(request["prompt"] + answer)
        (measured,) = measure_text(
            drafter,
            target.embedding,
            target.head,
            taps=target.read(ids).taps,
            ids=ids,
            answers=(Answer(start=8, end=40, limit=40),),
        )
        assert list(measured.lengths) == request["acceptance_lengths"]
