"""Which embedding row stands for a masked slot. Order of choice as SpecForge has it."""

from __future__ import annotations

from dflash.contract.errors import ConfigError
from dflash.data.tokenizer import ChatTokenizer


def resolve_mask_token(chosen: int, tokenizer: ChatTokenizer, vocab: int) -> int:
    """Explicit (`chosen` ≥ 0), else the tokenizer's mask token, the first row past it, pad, eos, unk.

    Raises ConfigError when the tokenizer does not fit the `vocab` rows, or nothing is left to choose.
    """
    check_tokenizer_fits(tokenizer, vocab)
    past = tokenizer.vocab_size if tokenizer.vocab_size < vocab else None
    special = tokenizer.special
    explicit = chosen if chosen >= 0 else None
    for candidate in (explicit, special.mask, past, special.pad, special.eos, special.unk):
        if candidate is not None:
            return candidate
    raise ConfigError(
        "no token can stand for a masked slot",
        where="drafter.mask_token_id",
        found=f"{tokenizer.name} fills all {vocab} rows and has no mask, pad, eos or unk token",
        remedy="set drafter.mask_token_id to an embedding row that the data does not use",
    )


def check_tokenizer_fits(tokenizer: ChatTokenizer, vocab: int) -> None:
    """Raises ConfigError when it has tokens beyond the target's `vocab` embedding rows."""
    if tokenizer.vocab_size > vocab:
        raise ConfigError(
            "the tokenizer has more tokens than the target has embedding rows",
            where="target.tokenizer",
            found=f"{tokenizer.vocab_size} tokens in {tokenizer.name}",
            expected=f"at most {vocab}",
            remedy="name the target's own tokenizer",
        )
