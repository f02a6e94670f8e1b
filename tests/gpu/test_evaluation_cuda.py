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


def test_in_bfloat16_prompts_padded_on_the_left_are_answered_as_each_alone():
    """With no attention of cuDNN's, which plans anew for every shape that a growing text has."""
    torch.backends.cuda.enable_cudnn_sdp(True)
    target = WholeTarget(TargetConfig(model=str(golden / "tiny_target"), dtype="bfloat16"), cuda, (1, 3, 5))
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    lengths = (8, 3, 6, 1)
    prompts = [request["prompt"][:n] for request, n in zip(requests, lengths, strict=False)]
    together = target.answer(prompts, 12, frozenset())
    alone = [target.answer([prompt], 12, frozenset())[0] for prompt in prompts]
    # Rounding decides a near-tie otherwise now and then; a prompt that is masked wrongly agrees nowhere.
    assert sum(a == b for a, b in zip(together, alone, strict=True)) >= len(prompts) / 2
