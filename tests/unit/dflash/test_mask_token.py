"""Which row stands for a masked slot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dflash.contract.errors import ConfigError
from dflash.data.tokenizer import SpecialIds
from dflash.mask_token import resolve_mask_token


def tokenizer(vocab_size: int, **special: int | None) -> Any:
    ids = {"mask": None, "pad": None, "eos": None, "unk": None, **special}
    return SimpleNamespace(name="tok", vocab_size=vocab_size, special=SpecialIds(**ids))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("chosen", "vocab_size", "special", "row"),
    [
        (5, 90, {"mask": 3}, 5),
        (0, 90, {"mask": 3}, 0),
        (-1, 90, {"mask": 3, "pad": 1}, 3),
        (-1, 90, {"mask": 0}, 0),
        (-1, 90, {"pad": 1}, 90),
        (-1, 100, {"pad": 0, "eos": 2}, 0),
        (-1, 100, {"eos": 2, "unk": 4}, 2),
        (-1, 100, {"unk": 4}, 4),
    ],
)
def test_the_order_of_choice(chosen: int, vocab_size: int, special: dict[str, int], row: int) -> None:
    assert resolve_mask_token(chosen, tokenizer(vocab_size, **special), 100) == row


def test_nothing_to_choose_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match="no token can stand") as caught:
        resolve_mask_token(-1, tokenizer(100), 100)
    assert "drafter.mask_token_id" in str(caught.value.remedy)


def test_a_tokenizer_larger_than_the_embedding_is_refused() -> None:
    with pytest.raises(ConfigError, match="more tokens than") as caught:
        resolve_mask_token(-1, tokenizer(101, mask=3), 100)
    assert caught.value.found == "101 tokens in tok"
