"""What an evaluation refuses or tells before and while it measures."""

from pathlib import Path

import pytest
import torch

from dflash.contract.errors import ConfigError, DFlashError
from dflash.data.tokenizer import open_embedded_tokenizer
from dflash.evaluation import evaluate as evaluation
from dflash.evaluation.evaluate import _measure_all, evaluate
from dflash.evaluation.outcome import Request

golden = Path(__file__).parents[3] / "data" / "golden"


def test_a_tokenizer_with_more_tokens_than_rows_is_refused_and_slow_kernels_are_told(monkeypatch):
    """The embedded tokenizer has more than the 97 rows of the target."""
    said = []
    monkeypatch.setattr(evaluation, "slow_recurrence", lambda spec: f"{spec.layers} layers are slow")
    monkeypatch.setattr(evaluation, "load_documents", lambda *_given: pytest.fail("is read for nothing"))
    monkeypatch.setattr(evaluation, "open_tokenizer", lambda *_given: open_embedded_tokenizer())
    settings = [f"target.model={golden / 'tiny_target'}"]
    with pytest.raises(ConfigError, match="more tokens than the target has embedding rows") as caught:
        evaluate(str(golden / "tiny_drafter"), settings, Request(), said.append)
    assert (caught.value.where, caught.value.expected) == ("target.tokenizer", "at most 97")
    assert said == ["warning: 8 layers are slow"]


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("CUDA error: out of memory")]
)
def test_memory_that_runs_out_on_the_way_says_what_to_lower(error):
    def texts():
        raise error
        yield

    class Target:
        device = "cuda:0"

    with pytest.raises(DFlashError, match="out of memory") as caught:
        _measure_all(texts(), Target(), None, print)
    assert "--batch" in caught.value.remedy
