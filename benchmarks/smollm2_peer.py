"""Decodes with the PyPI wheel dflash 0.1.0, whose package has our name: a program for a process of its own.

A JSON job on stdin: {"drafter": DIR, "target": DIR, "device": …, "prompts": [[id, …]], "max_new_tokens": N,
"stops": [id, …]}. On stdout, for every prompt, what speculative decoding wrote, its acceptance lengths, and
what the target writes greedily without a drafter; in float32.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import dflash.model as peer
import torch
from transformers import AutoModelForCausalLM

torch.backends.cuda.matmul.allow_tf32 = False
job = json.load(sys.stdin)
device = torch.device(job["device"])
if device.type == "cpu":
    peer._cuda_time = time.perf_counter  # the wheel waits for a GPU
    torch.set_num_threads(job["threads"])
drafter: Any = peer.DFlashDraftModel.from_pretrained(job["drafter"], dtype=torch.float32).to(device).eval()
target = AutoModelForCausalLM.from_pretrained(job["target"], dtype=torch.float32).to(device).eval()
rows = []
for prompt in job["prompts"]:
    ids = torch.tensor([prompt], device=device)
    began_s = time.perf_counter()
    with torch.inference_mode():
        out = peer.dflash_generate(
            drafter,
            target,
            ids,
            max_new_tokens=job["max_new_tokens"],
            stop_token_ids=job["stops"],
            return_stats=True,
        )
        drafted_s = time.perf_counter() - began_s
        began_s = time.perf_counter()
        plain = target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=job["max_new_tokens"],
            eos_token_id=job["stops"],
            pad_token_id=job["stops"][0],
        )
    rows.append(
        {
            "drafted": out.output_ids[0, len(prompt) :].tolist(),
            "plain": plain[0, len(prompt) :].tolist(),
            "lengths": list(out.acceptance_lengths),
            "drafted_s": drafted_s,
            "plain_s": time.perf_counter() - began_s,
        }
    )
json.dump({"package": peer.__file__, "rows": rows}, sys.stdout)
