"""Whose a checkpoint is: contents count, names of directories and files do not."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dflash.checkpoints.identity import Identity, identify
from dflash.contract.config import load_config
from dflash.contract.errors import CheckpointError
from dflash.data.documents import Documents
from dflash.data.tokenizer import ChatTokenizer, open_embedded_tokenizer
from tests.small_checkpoints import spec


class Tokenizer(SimpleNamespace):
    content_sha256 = "a1"
    template_sha256 = "b2"


def make(*settings: str, sample: str = "c3", documents: str = "96 documents", **changed: Any) -> Identity:
    config = load_config(None, settings)
    tokenizer = cast(ChatTokenizer, Tokenizer(**{k: v for k, v in changed.items() if k not in ("spec",)}))
    known = cast(Documents, SimpleNamespace(identity=documents))
    return identify(config, changed.get("spec", spec), known, tokenizer, sample)


here = "target.model=/models/here"


def test_a_target_is_known_by_its_weights_wherever_it_lies() -> None:
    make("target.model=/models/there").check_model(make(here).model, "step-1")
    with pytest.raises(CheckpointError) as caught:
        make(here, sample="d4").check_model(make(here).model, "step-1")
    assert (caught.value.where, caught.value.found) == ("step-1: target_weights", "c3")


def test_a_random_target_is_known_by_shape_and_seed() -> None:
    make("target.seed=3", sample="d4").check_model(make("target.seed=3").model, "step-1")
    with pytest.raises(CheckpointError, match=r"target\.seed"):
        make("target.seed=3").check_model(make().model, "step-1")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"content_sha256": "x"}, "tokenizer"),
        ({"template_sha256": "x"}, "chat_template"),
        ({"spec": replace(spec, mask_token_id=5)}, "mask_token_id"),
        ({"spec": replace(spec, taps=(0, 1, 2))}, "taps"),
        ({"spec": replace(spec, target_layers=3)}, "target_layers"),
        ({"spec": replace(spec, vocab=17)}, "vocab"),
    ],
)
def test_what_makes_it_another_model_is_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match="another model") as caught:
        make(here, **change).check_model(make(here).model, "step-1")
    assert caught.value.where == f"step-1: {named}"


@pytest.mark.parametrize(
    ("settings", "named"), [("data.seed=1", "data.seed"), ("window.tokens=4096", "window.tokens")]
)
def test_what_makes_it_other_data_is_named(settings: str, named: str) -> None:
    now, saved = make(settings), make().data
    assert not now.has_data(saved)
    assert now.other_data(saved, "step-1").where == f"step-1: {named}"
    assert make("pipeline.split=2-1").has_data(saved)


def test_a_tokenizer_is_known_by_what_it_holds_and_its_template_by_its_text() -> None:
    one, same, other = (open_embedded_tokenizer() for _ in range(3))
    assert (one.content_sha256, one.template_sha256) == (same.content_sha256, same.template_sha256)
    other.template_text += " "
    other._backend.add_tokens(["<|new|>"])
    assert other.content_sha256 != one.content_sha256
    assert other.template_sha256 != one.template_sha256
