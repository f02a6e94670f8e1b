"""AdamW over float32 masters with linear warm-up, cosine decay and a global gradient clip.

Masters are the parameters themselves when those are float32, else float32 copies. Knows nothing of
windows, drafters or devices other than the one its parameters are on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dflash.contract.errors import CheckpointError
from dflash.contract.sections import OptimizerConfig


def learning_rate(config: OptimizerConfig, step: int, total_steps: int) -> float:
    """The rate of optimizer step `step` (from 0): linear from 0 over the warm-up, then cosine to 0."""
    warmup = max(1, math.ceil(config.warmup_ratio * total_steps))
    if step < warmup:
        return config.lr * (step + 1) / warmup
    share = (step - warmup) / max(1, total_steps - warmup)
    return config.lr * 0.5 * (1.0 + math.cos(math.pi * min(1.0, share)))


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one optimizer step did; scalars on the device."""

    grad_norm: Tensor  # before clipping
    skipped: Tensor  # 1: the gradient was not finite, and nothing was changed
    lr: float


class Optimizer:
    """Steps the parameters of one drafter from float32 gradients."""

    def __init__(
        self, parameters: Sequence[tuple[str, nn.Parameter]], config: OptimizerConfig, total_steps: int
    ) -> None:
        self.config, self.total_steps, self.steps_done = config, total_steps, 0
        self._names = [name for name, _ in parameters]
        self._parameters = [parameter for _, parameter in parameters]
        self._masters = [
            p.detach() if p.dtype == torch.float32 else p.detach().float() for p in self._parameters
        ]
        for master in self._masters:
            master.requires_grad_(False)
        self._adamw = torch.optim.AdamW(
            self._masters,
            lr=config.lr,
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            weight_decay=config.weight_decay,
            fused=True,
        )

    def step(self, gradients: Sequence[Tensor], *, sound: Tensor | None = None) -> StepResult:
        """One update from float32 `gradients`, in parameter order; they are written over.

        Clipping and skipping happen inside the fused kernel: no pass over the gradients and no wait for the
        device. `sound`: scalar bool on the device, False skips the update too.
        """
        lr = learning_rate(self.config, self.steps_done, self.total_steps)
        for group in self._adamw.param_groups:
            group["lr"] = lr
        for master, gradient in zip(self._masters, gradients, strict=True):
            master.grad = gradient
        norm = torch.nn.utils.get_total_norm(gradients)
        fine = norm.isfinite() if sound is None else norm.isfinite() & sound
        # What GradScaler hands to fused optimizers: gradients are divided by the one, skipped by the other.
        self._adamw.grad_scale = self._divisor(norm)  # type: ignore[attr-defined]
        self._adamw.found_inf = (~fine).float()  # type: ignore[attr-defined]
        self._adamw.step()
        for master in self._masters:
            master.grad = None
        rounded = [
            (p.data, m)
            for p, m in zip(self._parameters, self._masters, strict=True)
            if p.data_ptr() != m.data_ptr()
        ]
        if rounded:
            torch._foreach_copy_([to for to, _ in rounded], [master for _, master in rounded])
        self.steps_done += 1
        return StepResult(norm, (~fine).float(), lr)

    def _divisor(self, norm: Tensor) -> Tensor:
        """By what gradients of this norm are divided so that they come out clipped; as torch's clip does."""
        if self.config.clip_norm == 0:
            return torch.ones_like(norm)
        return ((norm + 1e-6) / self.config.clip_norm).clamp(min=1.0)

    def updates_made(self) -> int:
        """Steps that changed the weights, by AdamW's own count. Waits for the device."""
        state = self._adamw.state.get(self._masters[0])
        return 0 if not state else int(state["step"])

    def state(self) -> dict[str, Tensor]:
        """Masters and moments by name, enough to go on exactly."""
        tensors: dict[str, Tensor] = {}
        for name, master in zip(self._names, self._masters, strict=True):
            moments = self._adamw.state.get(master, {})
            tensors[f"master.{name}"] = master
            for key in ("exp_avg", "exp_avg_sq"):
                tensors[f"{key}.{name}"] = moments.get(key, torch.zeros_like(master))
        return tensors

    def restore(self, tensors: dict[str, Tensor], steps_done: int, *, updates: int | None = None) -> None:
        """Go on from `state()` after `steps_done` steps. Raises CheckpointError when shapes differ.

        `updates`: how many of them changed the weights, all when it is None.
        """
        made = float(steps_done if updates is None else updates)
        for name, master, parameter in zip(self._names, self._masters, self._parameters, strict=True):
            state = {key: tensors.get(f"{key}.{name}") for key in ("master", "exp_avg", "exp_avg_sq")}
            for key, tensor in state.items():
                if tensor is None or tensor.shape != master.shape:
                    raise CheckpointError(
                        "the optimizer state does not fit the drafter",
                        where=f"{key}.{name}",
                        found="missing" if tensor is None else list(tensor.shape),
                        expected=list(master.shape),
                    )
            saved = {key: tensor.to(master.device) for key, tensor in state.items() if tensor is not None}
            master.copy_(saved["master"])
            parameter.data.copy_(master)
            device = master.device if master.is_cuda else torch.device("cpu")
            self._adamw.state[master] = {
                "step": torch.tensor(made, dtype=torch.float32, device=device),
                "exp_avg": saved["exp_avg"].clone(),
                "exp_avg_sq": saved["exp_avg_sq"].clone(),
            }
        self.steps_done = steps_done
