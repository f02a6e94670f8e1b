"""Small tokenizers of every kind that chat models use, made on the spot, and templates to go with them."""

from __future__ import annotations

import json
from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

texts = [
    "Count from one to four. 1, 2, 3, 4.",
    "  two blanks\n\nand a new paragraph\n  with more",
    "The quick brown fox jumps over the lazy dog, éà, and the dog sleeps.",
    "user assistant system \n\n\n answer [INST] [/INST] : end of turn",
    "the answer is forty two and the answer was forty one",
] * 4
specials = ("<s>", "<|user|>", "<|assistant|>", "<|end|>")


def _train(tokenizer: Tokenizer, trainer: trainers.Trainer) -> Tokenizer:
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in specials])
    return tokenizer


def _byte_fallback() -> Tokenizer:
    """As SentencePiece: merges over whole characters, unknown ones as bytes."""
    tokenizer = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=300, show_progress=False)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.model.__getstate__())
    vocab = dict(model["vocab"])
    for byte in range(256):
        vocab.setdefault(f"<0x{byte:02X}>", len(vocab))
    merges = [tuple(merge) for merge in model["merges"]]
    made = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, byte_fallback=True, fuse_unk=True, unk_token=None)
    )
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in specials])
    return made


@cache
def definition(kind: str) -> str:
    """The JSON of a tokenizer: byte-level, metaspace-always, metaspace-first, prepend, gemma, unigram, …"""
    if kind.startswith(("byte-level", "blank-before")):
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
            add_prefix_space=kind == "blank-before", use_regex=kind != "byte-level-merging"
        )
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        if kind == "byte-level-nfc":
            tokenizer.normalizer = normalizers.NFC()
        if kind == "byte-level-lower":
            tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
        return _train(
            tokenizer, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
        ).to_str()
    if kind == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=200, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
        )
        return _train(tokenizer, trainer).to_str()
    tokenizer = _byte_fallback()
    if kind == "prepend":  # as Llama 2
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    elif kind == "gemma":
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
    else:
        scheme = kind.removeprefix("metaspace-")
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    return tokenizer.to_str()


kinds = (
    "byte-level",
    "byte-level-merging",
    "byte-level-nfc",
    "byte-level-lower",
    "blank-before",
    "metaspace-always",
    "metaspace-first",
    "metaspace-never",
    "prepend",
    "gemma",
    "unigram",
)
