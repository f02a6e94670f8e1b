"""Runs exported drafters in z-lab's wheel dflash 0.1.0: one JSON job on stdin, its answer on stdout.

{"hidden": [{"drafter": DIR, "inputs": FILE, "out": FILE}],
 "generate": [{"drafter": DIR, "target": DIR, "prompts": [[id, …]], "max_new_tokens": N, "stops": [id, …]}]}

`inputs` holds features [T, F*H] and noise [b, H]; `out` gets the states [b, H] of the block behind them.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import dflash.model as peer
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)
peer._cuda_time = time.perf_counter  # the wheel's waits for a GPU


def load(directory: str) -> Any:
    return peer.DFlashDraftModel.from_pretrained(directory).eval()


def run_block(job: dict[str, str]) -> dict[str, Any]:
    model, inputs = load(job["drafter"]), load_file(job["inputs"])
    features, noise = (inputs[name].to(model.dtype)[None] for name in ("features", "noise"))
    positions = torch.arange(features.shape[1] + noise.shape[1])[None]
    with torch.no_grad():
        states = model(position_ids=positions, noise_embedding=noise, target_hidden=features)
    save_file({"states": states[0].contiguous()}, job["out"])
    return {
        "dtype": str(model.dtype),
        "block_size": model.block_size,
        "mask_token_id": model.mask_token_id,
        "taps": list(model.target_layer_ids),
        "tensors": len(model.state_dict()),
    }


def generate(job: dict[str, Any]) -> dict[str, Any]:
    model = load(job["drafter"])
    target = AutoModelForCausalLM.from_pretrained(job["target"], dtype=model.dtype).eval()
    drafted: list[int] = []
    compute = model.compute_logits

    def count_drafts(hidden: torch.Tensor, head: Any) -> torch.Tensor:
        drafted.append(hidden.shape[1])
        return compute(hidden, head)

    model.compute_logits = count_drafts
    answers, lengths = [], []
    for prompt in job["prompts"]:
        out = peer.dflash_generate(
            model,
            target,
            torch.tensor([prompt]),
            max_new_tokens=job["max_new_tokens"],
            stop_token_ids=job["stops"],
            return_stats=True,
        )
        answers.append(out.output_ids[0, len(prompt) :].tolist())
        lengths.append(out.acceptance_lengths)
    return {"answers": answers, "lengths": lengths, "most_drafted": max(drafted)}


task = json.load(sys.stdin)
done = {"hidden": [run_block(j) for j in task["hidden"]], "generate": [generate(j) for j in task["generate"]]}
json.dump({"package": peer.__file__, **done}, sys.stdout)
