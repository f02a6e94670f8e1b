"""speculators' DFlash drafter step as a contender: its own model and loss from its published wheel.

It trains on the labels that its teacher's head gives; here the teacher's state before each token is that
token's row of the head, so that labels are the tokens themselves, as everywhere else. Its loss is divided by
the number of slots, not by their weights: gradients are told with that factor taken out. Its compiled mask
did not finish compiling in minutes, so the mask is built uncompiled; everything else runs as it ships. It
gets the case's anchors instead of drawing its own. Knows nothing of how it is timed.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.drafter_case import Case, block_size
from benchmarks.peer_specforge import on_device, qwen3_config

# Imported by the package's data loading, which is not used here.
not_needed = (
    "openai",
    "openai.types",
    "openai.types.chat",
    "openai.types.completion",
    "datasets",
    "hs_connectors",
)


class _Nothing(types.ModuleType):
    """A module in which every name is an empty class."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def import_speculators() -> Any:
    """The module of its drafter, with packages left out that only its data loading wants."""
    for name in not_needed:
        sys.modules.setdefault(name, _Nothing(name))
    from speculators.models.dflash import core

    return core


class SpeculatorsStep:
    """A drafter of speculators with the case's weights. See `contest.Contender`."""

    name = "speculators"

    def __init__(self, case: Case) -> None:
        core = import_speculators()
        self._case, place = case, case.device.torch_device
        self._model = _build_model(core, case)
        trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        self._trained = trained
        ours = case.config.optimizer
        # As its trainer builds it for optimizer "adamw".
        self._optimizer = torch.optim.AdamW(trained, lr=ours.lr, weight_decay=ours.weight_decay)
        batch = case.batch
        self._inputs = _inputs(case)
        self._options, _ = core.DFlashDraftModel.get_trainer_kwargs(
            loss_fn="ce",
            loss_implementation="fused" if place.type == "cuda" else "eager",
            max_anchors=batch.anchors.numel(),
            dflash_decay_gamma=case.config.gamma,
        )
        anchors = batch.anchors.to(place)
        valid = torch.ones_like(anchors, dtype=torch.bool)
        core.select_anchors = lambda *_arguments: (anchors, valid)
        # Its denominator in units of ours.
        counted = float((batch.weights > 0).sum())
        self._scale = counted / batch.window.denominator
        self._loss: Tensor | None = None

    def train(self) -> None:
        """Forward, loss and backward, under autocast as in its trainer."""
        place = self._case.device.torch_device
        with torch.autocast(place.type, dtype=torch.bfloat16, enabled=place.type == "cuda"):
            _, loss, _metrics = self._model(**self._inputs, **self._options)
        loss.backward()
        self._loss = loss.detach()

    def complete(self) -> None:
        """Clip and step."""
        nn.utils.clip_grad_norm_(self._trained, self._case.config.optimizer.clip_norm)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def take_gradients(self) -> tuple[float, dict[str, Tensor]]:
        """Loss of the last `train` and its gradients, both by our denominator."""
        assert self._loss is not None
        gradients = {
            name: p.grad.float() * self._scale
            for name, p in self._model.named_parameters()
            if p.grad is not None
        }
        self._optimizer.zero_grad()
        return float(self._loss) * self._scale, gradients


def _build_model(core: Any, case: Case) -> Any:
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.dflash import DFlashSpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from torch.nn.attention.flex_attention import create_block_mask

    place = case.device.torch_device
    layers = qwen3_config(case)
    layers._attn_implementation = "simple_flex_attention" if place.type == "cuda" else "sdpa"
    size = case.spec.block_size
    config = DFlashSpeculatorConfig(
        transformer_layer_config=layers,
        draft_vocab_size=case.spec.vocab,
        block_size=size,
        aux_hidden_state_layer_ids=list(case.spec.taps),
        mask_token_id=case.spec.mask_token_id,
        speculators_config=SpeculatorsConfig(
            algorithm="dflash",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=size - 1)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["Qwen3ForCausalLM"]),
        ),
    )
    # float32 weights under autocast, as its trainer has them.
    model = on_device(lambda: core.DFlashDraftModel(config), place, torch.float32).train()
    missing = model.load_state_dict({key: w.float() for key, w in case.weights.items()}, strict=False)
    assert not missing.unexpected_keys, missing.unexpected_keys
    with torch.no_grad():
        model.embed_tokens.weight.copy_(case.embedding)
        model.lm_head.weight.copy_(case.head)
        model.verifier_lm_head.weight.copy_(case.head)
        model.verifier_norm.weight.fill_(1.0)
    if place.type == "cuda":
        model._create_mask_fn = create_block_mask
    return model


def _inputs(case: Case) -> dict[str, Tensor]:
    """Arguments of its forward: the batch as one packed row."""
    batch, place = case.batch, case.device.torch_device
    ids = batch.input_ids.to(place)
    mask = torch.ones(case.shape.documents, case.shape.length, dtype=torch.bool, device=place)
    mask[:, -block_size:] = False
    return {
        "hidden_states": case.taps[None],
        "input_ids": ids[None],
        "loss_mask": mask.view(1, -1),
        # The state that predicts token p + 1 sits at p.
        "verifier_last_hidden_states": nn.functional.embedding(ids.roll(-1), case.head)[None],
        "document_ids": batch.document_ids.to(place)[None],
        "position_ids": batch.positions.to(place)[None],
    }
