"""Drafter, visibility and objective together reproduce SpecForge 0.2.0 (tests/data/golden)."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dflash.attention import SdpaView
from dflash.batch import Batch
from dflash.drafter import Drafter, DrafterSpec
from dflash.objective import ObjectiveTerms, block_inputs, train_objective
from tests import small_drafters

golden = Path(__file__).parents[2] / "data" / "golden"
cases = json.loads((golden / "train_golden.json").read_text())["cases"]
mask_token_id, gammas = 96, {"g7": 7.0, "g4": 4.0}
cpu = torch.device("cpu")


def golden_spec(layer_types: list[str]) -> DrafterSpec:
    return dataclasses.replace(
        small_drafters.golden_spec, layer_types=tuple(layer_types), rope_theta=10_000.0
    )


def golden_batch(make_batch, gamma: float | None) -> Batch:
    """The two padded rows as two packed documents; padding blocks (keep 0) are dropped."""
    inputs = load_file(golden / "train_inputs.safetensors")
    anchors = [row[keep.bool()].tolist() for row, keep in zip(inputs["anchors"], inputs["keep"], strict=True)]
    batch = make_batch(inputs["input_ids"].tolist(), anchors, 4)
    slots = batch.anchors[:, None] + torch.arange(4)
    loss_mask = inputs["loss_mask"].flatten()[slots.clamp(max=47)]
    weights = batch.weights * loss_mask
    if gamma is not None:
        weights = weights * torch.exp(-(torch.arange(4) - 1).clamp(min=0) / gamma)
    return dataclasses.replace(batch, weights=weights)


def golden_drafter(spec: DrafterSpec, dtype: torch.dtype) -> Drafter:
    drafter = Drafter(spec).to(dtype)
    drafter.load_state_dict(load_file(golden / "draft_weights.safetensors"))
    return drafter


def run_case(
    drafter: Drafter, batch: Batch, *, loss: str, chunk_blocks: int
) -> tuple[torch.Tensor, ObjectiveTerms]:
    frozen = load_file(golden / "target_embed_head.safetensors")
    features = load_file(golden / "train_inputs.safetensors")["hidden_states"].flatten(0, 1)
    ids, positions = block_inputs(batch, mask_token_id)
    embedding = frozen["embed_tokens.weight"].to(drafter.dtype)
    hidden = drafter(
        features.to(drafter.dtype),
        batch.positions,
        embedding[ids],
        positions,
        SdpaView.of(batch, drafter.spec, cpu),
    )
    terms = train_objective(
        hidden,
        frozen["lm_head.weight"].to(drafter.dtype),
        batch.labels,
        batch.weights,
        loss=loss,
        dpace_alpha=0.5,
        chunk_blocks=chunk_blocks,
    )
    return hidden, terms


@pytest.mark.parametrize("chunk_blocks", [0, 2])
@pytest.mark.parametrize("name", [n for n, case in cases.items() if "error" not in case])
def test_case_gives_the_same_loss_accuracy_and_gradients(name, chunk_blocks, make_batch):
    case = cases[name]
    objective = name.split("_")[3]
    dtype = torch.float64 if case["dtype"] == "torch.float64" else torch.float32
    batch = golden_batch(make_batch, gammas.get(objective))
    drafter = golden_drafter(golden_spec(case["layer_types"]), dtype)
    loss = "dpace" if objective == "dpace05" else "dflash"

    _, terms = run_case(drafter, batch, loss=loss, chunk_blocks=chunk_blocks)
    denominator = len(batch.lengths) if loss == "dpace" else float(batch.weights.sum())
    (terms.numerator / denominator).backward()

    assert denominator == pytest.approx(case["loss_den"], rel=1e-5)
    assert terms.numerator.item() == pytest.approx(case["loss_num"], rel=1e-5)
    assert terms.numerator.item() / denominator == pytest.approx(case["loss"], rel=1e-5)
    assert (terms.correct.item(), terms.counted.item()) == (case["acc_num"], case["acc_den"])
    if case["total_grad_norm"] == 0:
        assert name.endswith("_fwd")  # FlexAttention has no backward on the CPU
        return
    norms = {n: p.grad.double().norm().item() for n, p in drafter.named_parameters()}
    assert norms == pytest.approx(case["grad_norms"], rel=1e-5)
    total = torch.nn.utils.get_total_norm([p.grad for p in drafter.parameters()]).item()
    assert total == pytest.approx(case["total_grad_norm"], rel=1e-5)


@pytest.mark.parametrize("layers", ["full", "mixed"])
def test_hidden_states_and_gradients_are_the_same_element_by_element(layers, make_batch):
    reference = load_file(golden / f"{layers}_f32_sdpa_g7.safetensors")
    case = cases[f"{layers}_f32_sdpa_g7"]
    batch = golden_batch(make_batch, 7.0)
    drafter = golden_drafter(golden_spec(case["layer_types"]), torch.float32)

    hidden, terms = run_case(drafter, batch, loss="dflash", chunk_blocks=0)
    (terms.numerator / batch.weights.sum()).backward()

    keep = load_file(golden / "train_inputs.safetensors")["keep"].bool()
    expected = reference["out_hidden"].view(2, 5, 4, 64)[keep].flatten(0, 1)
    torch.testing.assert_close(hidden, expected, rtol=1e-5, atol=1e-5)
    for name, parameter in drafter.named_parameters():
        torch.testing.assert_close(parameter.grad, reference[f"grad.{name}"], rtol=1e-4, atol=2e-6)
