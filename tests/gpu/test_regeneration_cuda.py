"""Answers on CUDA: those of the CPU in float32, and in any batch what a prompt gets alone."""

import pytest
import torch

from dflash.contract.config import load_config
from dflash.contract.regeneration import RegenerationChoice
from dflash.regeneration.answers import Request
from dflash.regeneration.transformers_engine import TransformersEngine

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]
requests = [
    Request(row=i, turn=0, messages=({"role": "user", "content": "word " * (i % 9 + 1) + str(i)},))
    for i in range(24)
]


def answers(model: str, device: str, dtype: str = "float32", **options):
    torch.backends.cuda.matmul.allow_tf32 = False
    config = load_config(None, [f"target.model={model}", f"devices.kind={device}", f"target.dtype={dtype}"])
    engine = TransformersEngine(config, RegenerationChoice(to="unused", max_new_tokens=24, **options))
    return {request.row: answer for portion in engine.answer(requests) for request, answer in portion}


@pytest.mark.parametrize("model", ["random:tiny", "random:tiny-hybrid"])
def test_greedy_answers_are_those_of_the_cpu(model: str) -> None:
    on_cpu, on_gpu = answers(model, "logical"), answers(model, "cuda")
    assert len(on_gpu) == len(requests)
    # Random weights make near-ties, which rounding may decide otherwise.
    assert sum(on_cpu[row] == on_gpu[row] for row in on_cpu) >= 0.9 * len(requests)


def test_a_batch_too_large_for_memory_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, whole = answers("random:tiny", "cuda"), TransformersEngine._decode

    def decode(self, batch):
        if len(batch) > 5:
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")  # a real error of the allocator
        return whole(self, batch)

    monkeypatch.setattr(TransformersEngine, "_decode", decode)
    found = answers("random:tiny", "cuda")
    assert sum(found[row] == expected[row] for row in expected) >= 0.9 * len(requests)


def test_in_bfloat16_a_batch_padded_on_the_left_has_the_answers_of_each_prompt_alone() -> None:
    """With no attention of cuDNN's, which plans anew for every shape that a growing text has."""
    torch.backends.cuda.enable_cudnn_sdp(True)
    together = answers("random:tiny", "cuda", "bfloat16")
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    alone = answers("random:tiny", "cuda", "bfloat16", batch_tokens=1)
    # Of random weights bfloat16 makes near-ties in every second answer; one masked wrongly agrees nowhere.
    assert sum(together[row] == alone[row] for row in together) >= 0.25 * len(requests)
