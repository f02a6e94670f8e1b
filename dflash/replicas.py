"""One drafter per drafter device, all equal: trained on different batches, summed at each window end.

The leader is the first drafter's device. It adds the gradients of all replicas in replica order, clips, steps
and copies the new weights back, so that every replica holds the same bits again. Knows nothing of threads,
except that `complete` may be called from any of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from dflash.attention import upload
from dflash.batch import Batch, HiddenStates, WindowInfo
from dflash.contract.config import TrainConfig
from dflash.contract.errors import DFlashError
from dflash.contract.events import Probe
from dflash.devices import Device, Moment
from dflash.drafter import Drafter
from dflash.drafter_kernels import choose_kernels, plan_batch, takes_tiles
from dflash.objective import block_inputs, train_objective
from dflash.optimizer import Optimizer, StepResult


@dataclass(frozen=True, slots=True)
class WindowFigures:
    """What a window came to, as host numbers."""

    loss: float  # numerator / denominator over the whole window
    accuracy: float  # correct argmax over counted slots, unweighted
    grad_norm: float  # before clipping
    lr: float


class Replica:
    """A drafter with the frozen embedding and head on one device. Used by one thread at a time."""

    def __init__(
        self, drafter: Drafter, embedding: Tensor, head: Tensor, device: Device, config: TrainConfig
    ) -> None:
        place = device.torch_device
        self.device, self.config = device, config
        self.drafter = drafter.to(place, _dtype(config.drafter.dtype, place))
        self.embedding = embedding.to(place, drafter.dtype)
        self.head = self.embedding if head is embedding else head.to(place, drafter.dtype)
        self._view_of, self.drafter.runner = choose_kernels(config, drafter.spec, place)
        self.parameters = list(self.drafter.parameters())
        self._figures = torch.zeros(3, dtype=torch.float32, device=place)  # numerator, correct, counted
        self._float_gradients: dict[int, Tensor] = {}
        for index, parameter in enumerate(self.parameters):
            if parameter.dtype != torch.float32:
                add = partial(self._add_in_float, index)
                parameter.register_post_accumulate_grad_hook(add)  # type: ignore[no-untyped-call]

    @property
    def compiled(self) -> bool:
        """Whether the first batch takes a compilation."""
        return takes_tiles(self.config.drafter, self.drafter.spec, self.device.torch_device.type)

    def plan(self, batch: Batch) -> Batch:
        """The batch with what can be made for `train` ahead of it, on the CPU."""
        return plan_batch(batch, self.config.drafter, self.drafter.spec, self.device.torch_device.type)

    def rehearse(self, batch: Batch) -> None:
        """Train on empty states and forget it, so that everything is compiled and allocated."""
        spec = self.drafter.spec
        shape = (batch.tokens, len(spec.taps) * spec.hidden)
        taps = torch.zeros(shape, dtype=self.drafter.dtype, device=self.device.torch_device)
        self.train(HiddenStates(batch=self.plan(batch), taps=taps))
        self.take_gradients()
        self.take_figures()

    def _add_in_float(self, index: int, parameter: Tensor) -> None:
        gradient, parameter.grad = parameter.grad, None
        assert gradient is not None
        if index in self._float_gradients:
            self._float_gradients[index].add_(gradient)
        else:
            self._float_gradients[index] = gradient.float()

    def train(self, item: HiddenStates) -> None:
        """Forward, loss and backward of one batch; gradients and figures add up until `take_gradients`."""
        batch, place = item.batch, self.device.torch_device
        config, spec = self.config, self.drafter.spec
        view = self._view_of(batch, spec, place)
        ids, positions = block_inputs(batch, spec.mask_token_id)
        hidden = self.drafter(
            item.taps.to(self.drafter.dtype),
            upload(batch.positions, place),
            torch.nn.functional.embedding(upload(ids, place), self.embedding),
            upload(positions, place),
            view,
        )
        terms = train_objective(
            hidden,
            self.head,
            upload(batch.labels, place),
            upload(batch.weights, place),
            loss=config.objective.loss,
            dpace_alpha=config.objective.dpace_alpha,
            chunk_blocks=config.objective.chunk_blocks,
        )
        (terms.numerator / batch.window.denominator).backward()  # type: ignore[no-untyped-call]
        self._figures += torch.stack([terms.numerator.detach().float(), terms.correct, terms.counted])

    def take_gradients(self) -> list[Tensor | None]:
        """The float32 gradients since the last call, in parameter order; None where a parameter got none."""
        gradients = [
            parameter.grad if parameter.dtype == torch.float32 else self._float_gradients.get(index)
            for index, parameter in enumerate(self.parameters)
        ]
        self._float_gradients.clear()
        for parameter in self.parameters:
            parameter.grad = None
        return gradients

    def take_figures(self) -> Tensor:
        """Numerator, correct and counted slots since the last call: [3] float32 on this device."""
        figures = self._figures.clone()
        self._figures.zero_()
        return figures


def _dtype(choice: str, place: torch.device) -> torch.dtype:
    if choice == "auto":
        choice = "bfloat16" if place.type == "cuda" else "float32"
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[choice]


class ReplicaGroup:
    """All replicas of a run and the one optimizer that steps them."""

    def __init__(self, replicas: Sequence[Replica], config: TrainConfig, total_steps: int) -> None:
        self.replicas = list(replicas)
        leader = self.replicas[0]
        self.optimizer = Optimizer(list(leader.drafter.named_parameters()), config.optimizer, total_steps)

    @property
    def leader(self) -> Replica:
        return self.replicas[0]

    def complete(self, window: WindowInfo, moments: Sequence[Moment], probe: Probe) -> WindowFigures:
        """Sum, step and spread, after every device reached its moment. Ends with all devices idle.

        Raises DFlashError when loss or gradient is not finite; the weights then are as before the window.
        """
        late = [moment for moment in moments if not moment.done()]
        if late:
            with probe.span("window_wait", window=window.step):
                for moment in late:
                    moment.wait()
        # Held until the end: streams read them of which the allocator knows nothing, and memory freed earlier
        # would go to whatever their owners receive meanwhile.
        taken = [replica.take_gradients() for replica in self.replicas]
        device = self.leader.device
        with device.active(), device.computing(probe, window=window.step):
            with probe.span("sum", window=window.step):
                gradients = self._sum(taken)
                figures = self._sum_figures()
            with probe.span("optimizer", window=window.step):
                result = self.optimizer.step(gradients, sound=figures.isfinite().all())
                self._spread()
                self.leader.device.record().wait()
        numerator, correct, counted = figures.tolist()
        self._check_finite(window, numerator, result)
        return WindowFigures(
            loss=numerator / window.denominator,
            accuracy=correct / counted if counted else 0.0,
            grad_norm=float(result.grad_norm),
            lr=result.lr,
        )

    def _sum(self, taken: Sequence[Sequence[Tensor | None]]) -> list[Tensor]:
        """In replica order, on the leader's device; the first replica's gradients become the sums."""
        totals: list[Tensor | None] = [None] * len(self.leader.parameters)
        place = self.leader.device.torch_device
        for gradients in taken:
            for index, gradient in enumerate(gradients):
                if gradient is None:
                    continue
                total = totals[index]
                if total is None:
                    totals[index] = gradient.to(place)
                else:
                    total.add_(gradient.to(place))
        return [
            torch.zeros_like(parameter, dtype=torch.float32) if total is None else total
            for total, parameter in zip(totals, self.leader.parameters, strict=True)
        ]

    def _sum_figures(self) -> Tensor:
        place = self.leader.device.torch_device
        return torch.stack([replica.take_figures().to(place) for replica in self.replicas]).sum(0)

    def _check_finite(self, window: WindowInfo, numerator: float, result: StepResult) -> None:
        if float(result.skipped):
            raise DFlashError(
                "the loss or its gradient is not finite, training stops before the weights are harmed",
                where=f"step {window.step}",
                found=f"loss numerator {numerator}, gradient norm {float(result.grad_norm)}",
                remedy="lower optimizer.lr, or train in float32 to see whether precision is the cause",
            )

    def _spread(self) -> None:
        """Copy the leader's weights to the other replicas."""
        for replica in self.replicas[1:]:
            for own, new in zip(replica.parameters, self.leader.parameters, strict=True):
                own.data.copy_(new.data)

    def state(self) -> Mapping[str, Tensor]:
        """Optimizer state by name (see Optimizer.state)."""
        return self.optimizer.state()

    def restore(self, tensors: dict[str, Tensor], steps_done: int) -> None:
        """Go on from a checkpoint: masters into every replica."""
        self.optimizer.restore(tensors, steps_done)
        self._spread()
