"""The target itself as an engine, on one device, many prompts at a time.

A batch holds prompts of like length, as many as `batch_tokens` allows or as fit. When memory runs out the
batch is halved and tried again. Knows nothing of files.
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor, nn

from dflash.contract.config import TrainConfig
from dflash.contract.errors import ConfigError, DFlashError, ran_out_of_memory
from dflash.contract.model_shapes import random_prefix
from dflash.contract.regeneration import RegenerationChoice
from dflash.data.chat_turns import RenderError
from dflash.data.tokenizer import open_tokenizer
from dflash.devices import avoid_attention_plans, fitting, resolve_dtype, wants_cuda
from dflash.kernels import slow_recurrence
from dflash.mask_token import check_tokenizer_fits
from dflash.random_keys import random_keys
from dflash.regeneration.answers import Answer, Request
from dflash.regeneration.decoding import Generated, Sampling, decode
from dflash.target_shapes import TargetSpec
from dflash.target_weights import read_model, read_target

tell_every_s = 5.0  # of a batch in work
most_rows = 2048  # of a batch; past that a step no longer gains
cpu_batch_tokens = 16_384
memory_share = 0.4  # of what is free, for keys and values; growing them takes as much again
_opened_thinking = re.compile(r"<think>\s*\Z")

Prompt = tuple[Request, NDArray[np.int32]]


class TransformersEngine:
    """Answers with the model that `config.target` names. For one thread."""

    def __init__(
        self,
        config: TrainConfig,
        choice: RegenerationChoice,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Load the target. `tell` gets lines for people. Raises UsageErrors as training would.

        Raises DFlashError when the target does not fit into memory.
        """
        self._tell, self._told_s = tell, time.monotonic()
        self._choice, self.tokenizer = choice, open_tokenizer(config.target, config.data)
        cuda = wants_cuda(config)
        self._device = torch.device("cuda", 0) if cuda else torch.device("cpu")
        avoid_attention_plans(self._device)
        if not cuda:
            torch.set_num_threads(config.devices.cpu_threads)
        self._dtype = resolve_dtype(config.target.dtype, self._device.type)
        self._sampling = Sampling(temperature=choice.temperature, top_p=choice.top_p)
        with fitting(self._device):
            self._load(config)
        check_tokenizer_fits(self.tokenizer, self._spec.vocab)
        if (slow := slow_recurrence(self._spec)) is not None:
            tell(f"warning: {slow}")
        self._ends = self._end_tokens()
        self._batch_tokens = choice.batch_tokens or self._fitting_tokens()

    def _load(self, config: TrainConfig) -> None:
        name, seed = config.target.model, config.target.seed
        self._head: Tensor | None = None
        self._generation: Any = None
        if name.startswith(random_prefix):
            weights = read_target(name, seed=seed, dtype=self._dtype, attention="sdpa")
            model, text = weights.body, weights.config
            self._head = weights.head.to(self._device)
        else:
            model = cast(nn.Module, read_model(name, dtype=self._dtype))
            text = cast(Any, model).config.get_text_config()
            self._generation = getattr(model, "generation_config", None)
        self._model: Any = model.to(self._device).requires_grad_(False).eval()
        known = inspect.signature(self._model.forward).parameters
        self._cache_argument = "cache" if "cache" in known else "past_key_values"  # older than 5.2x
        self._text_config = text
        self._spec = TargetSpec.of(text, name)

    def _end_tokens(self) -> frozenset[int]:
        """What ends an answer: what the model's generation settings name, and the tokenizer's end token."""
        named = getattr(self._generation, "eos_token_id", None)
        ends = {named} if isinstance(named, int) else set(named or ())
        if self.tokenizer.special.eos is not None:
            ends.add(self.tokenizer.special.eos)
        if not ends:
            raise ConfigError(
                "the target has no token that ends an answer",
                where="target.tokenizer",
                found=self.tokenizer.name,
                expected="an eos token in the tokenizer or in generation_config.json",
            )
        return frozenset(ends)

    def _fitting_tokens(self) -> int:
        if self._device.type != "cuda":
            return cpu_batch_tokens
        each = 2 * self._spec.layers * self._spec.kv_heads * self._spec.head_dim * self._dtype.itemsize
        free, _ = torch.cuda.mem_get_info(self._device)
        return max(int(memory_share / 2 * free) // each, 1)

    def describe(self) -> dict[str, Any]:
        """The target as its answers depend on it."""
        return {
            "target": self._spec.name,
            "model_type": self._spec.model_type,
            "tokenizer_sha256": self.tokenizer.content_sha256,
            "template_sha256": self.tokenizer.template_sha256,
            "end_tokens": sorted(self._ends),
        }

    def surroundings(self) -> dict[str, Any]:
        """Device, precision and versions."""
        name = torch.cuda.get_device_name(self._device) if self._device.type == "cuda" else "cpu"
        return {
            "device": name,
            "dtype": str(self._dtype).removeprefix("torch."),
            "batch_tokens": self._batch_tokens,
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        }

    def answer(self, requests: Sequence[Request]) -> Iterator[list[tuple[Request, Answer]]]:
        """Every request once: those that no prompt can be made of first, then batch by batch."""
        prompts: list[Prompt] = []
        refused: list[tuple[Request, Answer]] = []
        room = self._spec.max_positions - self._choice.max_new_tokens
        for request in requests:
            try:
                ids = self.tokenizer.prompt(request.messages, request.tools)
            except RenderError as error:
                refused.append((request, Answer(finish="refused", reason=str(error))))
                continue
            if len(ids) > room:
                reason = (
                    f"too long: {len(ids)} tokens leave no room for an answer in {self._spec.max_positions}"
                )
                refused.append((request, Answer(finish="refused", reason=reason)))
            else:
                prompts.append((request, ids))
        if refused:
            yield refused
        prompts.sort(key=lambda prompt: len(prompt[1]), reverse=True)
        while prompts:
            count = self._batch_rows(prompts)
            yield self._answer_batch(prompts[:count])
            del prompts[:count]

    def _batch_rows(self, prompts: Sequence[Prompt]) -> int:
        """How many of the prompts, longest first, make up the next batch."""
        width = len(prompts[0][1]) + self._choice.max_new_tokens
        return min(max(self._batch_tokens // width, 1), most_rows, len(prompts))

    def _answer_batch(self, batch: list[Prompt]) -> list[tuple[Request, Answer]]:
        try:
            generated = self._decode(batch)
        except RuntimeError as error:
            if not ran_out_of_memory(f"{type(error).__name__}: {error}"):
                raise
            if len(batch) == 1:
                raise DFlashError(
                    "one prompt alone does not fit into memory",
                    where=str(self._device),
                    found=f"{len(batch[0][1])} tokens and {self._choice.max_new_tokens} new ones",
                    remedy="lower --max-new-tokens",
                ) from None
            generated = None
        if generated is None:  # here, where the error no longer keeps its tensors
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
            self._batch_tokens = max(self._batch_tokens // 2, 1)
            half = len(batch) // 2
            return self._answer_batch(batch[:half]) + self._answer_batch(batch[half:])
        return [
            (request, self._read(request, ids, new))
            for (request, ids), new in zip(batch, generated, strict=True)
        ]

    def _decode(self, batch: list[Prompt]) -> list[Generated]:
        uniforms = None
        if self._choice.temperature > 0:
            uniforms = np.stack([self._uniforms(request) for request, _ in batch])
        return decode(
            self._forward,
            transformers.DynamicCache(config=self._text_config),
            [ids for _, ids in batch],
            ends=self._ends,
            most=self._choice.max_new_tokens,
            sampling=self._sampling,
            uniforms=uniforms,
            device=self._device,
            watch=self._watch,
        )

    def _watch(self, steps: int, rows: int) -> None:
        if time.monotonic() >= self._told_s + tell_every_s:
            self._told_s = time.monotonic()
            self._tell(
                f"{steps} of {self._choice.max_new_tokens} tokens written, {rows} answers of the batch go on"
            )

    def _uniforms(self, request: Request) -> NDArray[np.float32]:
        """Numbers in [0, 1) for each new token of one answer, of the seed, its row and its turn alone."""
        keys = random_keys(
            self._choice.max_new_tokens,
            seed=self._choice.seed,
            purpose="answers",
            epoch=request.turn,
            document=request.row,
        )
        return ((keys >> np.uint64(40)) * 2.0**-24).astype(np.float32)

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> Tensor:
        inputs = {
            "input_ids": ids,
            "attention_mask": mask,
            "position_ids": positions,
            self._cache_argument: cache,
            "use_cache": True,
        }
        if self._head is None:
            logits: Tensor = self._model(**inputs, logits_to_keep=1).logits[:, -1]
            return logits
        return nn.functional.linear(self._model(**inputs).last_hidden_state[:, -1], self._head)

    def _read(self, request: Request, prompt: NDArray[np.int32], new: Generated) -> Answer:
        text = self.tokenizer.decode(new.ids[:-1] if new.ended else new.ids)
        finish = "stop" if new.ended else "length"
        # A prompt may open the thinking that the answer closes; then the text needs it to be whole.
        opened = _opened_thinking.search(self.tokenizer.decode(prompt[-8:]))
        forms = [opened.group() + text, text] if opened else [text]
        written = [*prompt.tolist(), *new.ids]
        kept = next((form for form in forms if self._makes(request, form, written)), None)
        return Answer(
            content=forms[0] if kept is None else kept,
            tokens=len(new.ids),
            finish=finish,
            reworded=kept is None and bool(text.strip()),
        )

    def _makes(self, request: Request, content: str, written: list[int]) -> bool:
        """Whether the conversation with that answer is, as training would render it, what was written."""
        answered = [*request.messages, {"role": "assistant", "content": content}]
        try:
            ids = self.tokenizer.render(answered, request.tools).ids
        except RenderError:
            return False
        return bool(np.array_equal(ids[: len(written)], written))
