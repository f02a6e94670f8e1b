"""One drafter per drafter device, all equal: trained on different batches, summed at each window end.

The leader is the first drafter's device. It adds the gradients of all replicas in replica order, clips, steps
and copies the new weights back, so that every replica holds the same bits again. All of that is only
enqueued: who trains on goes on behind it (see `Replica.await_weights`). Knows nothing of threads, except that
`complete` may be called from any of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import zip_longest

import torch
from torch import Tensor

from dflash.attention import SdpaView, upload
from dflash.batch import Batch, HiddenStates, WindowInfo
from dflash.compiling import working
from dflash.contract.config import TrainConfig
from dflash.contract.events import Probe
from dflash.devices import Device, Moment, Timing, reached, resolve_dtype
from dflash.drafter import Drafter, LayerRunner, PlainRunner
from dflash.drafter_kernels import ViewOf, choose_kernels, plan_batch, takes_tiles
from dflash.objective import ObjectiveTerms, block_inputs, train_objective
from dflash.optimizer import Optimizer, StepResult
from dflash.replica_link import ReplicaLink
from dflash.window_end import WindowEnd, tell
from dflash.window_figures import gather_sums, teaches

Tensors = Sequence[Tensor | None]  # gradients in parameter order, then figures


class Replica:
    """A drafter with the frozen embedding and head on one device. Used by one thread at a time."""

    def __init__(
        self, drafter: Drafter, embedding: Tensor, head: Tensor, device: Device, config: TrainConfig
    ) -> None:
        place = device.torch_device
        self.device, self.config = device, config
        self.drafter = drafter.to(place, resolve_dtype(config.drafter.dtype, place.type))
        self.embedding = embedding.to(place, drafter.dtype)
        self.head = self.embedding if head is embedding else head.to(place, drafter.dtype)
        self._view_of, self.drafter.runner = choose_kernels(config, drafter.spec, place)
        self.parameters = list(self.drafter.parameters())
        self._figures: Tensor | None = None  # sums of what was trained (window_figures.py); None: nothing
        self.settled: Moment = reached  # when the weights of the last step have arrived here
        self._float_gradients: dict[int, Tensor] = {}
        for index, parameter in enumerate(self.parameters):
            if parameter.dtype != torch.float32:
                # A hook that held this object would keep its weights on the device for good: the cycle leads
                # through C++, where the collector sees nothing.
                add = partial(_add_in_float, self._float_gradients, index)
                parameter.register_post_accumulate_grad_hook(add)  # type: ignore[no-untyped-call]

    @property
    def compiled(self) -> bool:
        """Whether the first batch takes a compilation."""
        return takes_tiles(self.config.drafter, self.drafter.spec, self.device.torch_device.type)

    def begin_again(self, weights: Mapping[str, Tensor], config: TrainConfig) -> None:
        """Be as a new replica with these weights (by parameter name) is; what a run before left is dropped.

        The run must have ended. Kernels that stay the same stay compiled.
        """
        if config.drafter.attention != self.config.drafter.attention:
            place = self.device.torch_device
            self._view_of, self.drafter.runner = choose_kernels(config, self.drafter.spec, place)
        self.drafter.runner.checkpointing = config.drafter.checkpointing == "layers"
        self.config, self.settled = config, reached
        self.take_gradients()
        self.take_figures()
        with torch.no_grad():
            for name, parameter in self.drafter.named_parameters():
                parameter.copy_(weights[name])

    def plan(self, batch: Batch) -> Batch:
        """The batch with what can be made for `train` ahead of it, on the CPU."""
        if batch.sent is not None:
            return dataclasses.replace(batch, sent=self.plan(batch.sent))
        return plan_batch(batch, self.config.drafter, self.drafter.spec, self.device.torch_device.type)

    def rehearse(self, batch: Batch) -> None:
        """Train on empty states and forget it, so that everything is compiled and allocated."""
        spec = self.drafter.spec
        shape = (batch.for_drafter.tokens, len(spec.taps) * spec.hidden)
        taps = torch.zeros(shape, dtype=self.drafter.dtype, device=self.device.torch_device)
        self.train(HiddenStates(batch=self.plan(batch), taps=taps))
        self.take_gradients()
        self.take_figures()

    def train(self, item: HiddenStates) -> None:
        """Forward, loss and backward of one batch; gradients and figures add up until `take_gradients`."""
        terms = self._terms(item, self._view_of, self.drafter.runner)
        (terms.numerator / item.batch.window.denominator).backward()  # type: ignore[no-untyped-call]
        figures = gather_sums(terms, item.taps)
        self._figures = figures if self._figures is None else self._figures + figures

    def measure(self, item: HiddenStates) -> Tensor:
        """The row of sums that `train` would add for this batch; nothing of the replica changes.

        Runs uncompiled, by SDPA: what is compiled for training is not compiled again.
        """
        with torch.no_grad(), working():
            return gather_sums(self._terms(item, SdpaView.of, PlainRunner()), item.taps)

    def _terms(self, item: HiddenStates, view_of: ViewOf, runner: LayerRunner) -> ObjectiveTerms:
        batch, place = item.batch.for_drafter, self.device.torch_device
        objective, spec = self.config.objective, self.drafter.spec
        ids, positions = block_inputs(batch, spec.mask_token_id)
        view = view_of(batch, spec, place)
        hidden = self.drafter(
            item.taps.to(self.drafter.dtype),
            upload(batch.positions, place),
            torch.nn.functional.embedding(upload(ids, place), self.embedding),
            upload(positions, place),
            view,
            runner,
        )
        return train_objective(
            hidden,
            self.head,
            upload(batch.labels, place),
            upload(batch.weights, place),
            loss=objective.loss,
            dpace_alpha=objective.dpace_alpha,
            chunk_blocks=objective.chunk_blocks,
        )

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

    def take_figures(self) -> Tensor | None:
        """The row of sums since the last call (`dflash/window_figures.py`), on this device; None: none."""
        figures, self._figures = self._figures, None
        return figures

    def await_weights(self) -> None:
        """Let what the calling thread enqueues wait for the weights of the last step."""
        self.settled.order_stream()


def _add_in_float(sums: dict[int, Tensor], index: int, parameter: Tensor) -> None:
    """Move the gradient of a parameter of lower precision into its float32 sum."""
    gradient, parameter.grad = parameter.grad, None
    assert gradient is not None
    if index in sums:
        sums[index].add_(gradient)
    else:
        sums[index] = gradient.float()


class ReplicaGroup:
    """All replicas of a run and the one optimizer that steps them."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        config: TrainConfig,
        total_steps: int,
        ways: Mapping[tuple[str, str], str] | None = None,
    ) -> None:
        """`ways`: by names of two devices, `pinned` where no peer copies may be made between them."""
        self.replicas = list(replicas)
        leader, *others = self.replicas
        self._links = [
            ReplicaLink(
                leader.device,
                other.device,
                through_host=(ways or {}).get((leader.device.name, other.device.name)) == "pinned",
            )
            for other in others
        ]
        self.optimizer = Optimizer(list(leader.drafter.named_parameters()), config.optimizer, total_steps)
        self._sound: Tensor | None = None  # on the leader: whether every step so far was finite

    @property
    def leader(self) -> Replica:
        return self.replicas[0]

    def complete(self, window: WindowInfo, moments: Sequence[Moment | None], probe: Probe) -> WindowEnd:
        """Sum, step and spread. `moments`: by replica, when its device has trained its part of the window.

        Without one: behind what the calling thread has enqueued there. Gradients travel as soon as they are
        whole. With several replicas the calling thread waits for all of them; then everything is enqueued.
        After a window that has taught nothing, or whose loss or gradient is not finite, the weights stay as
        they were, for good.
        """
        trained = [
            moment or replica.device.record() for replica, moment in zip_longest(self.replicas, moments)
        ]
        taken = [[*replica.take_gradients(), replica.take_figures()] for replica in self.replicas]
        brought = self._bring(taken, trained)
        shared = len(self.replicas) > 1
        if shared:
            _wait_for_all(trained, window, probe)
        device = self.leader.device
        with device.active(), device.computing(probe, window=window.step):
            summing = device.start_timing()
            with probe.span("sum", window=window.step):
                *gradients, figures = self._sum(brought)
            _stop(summing)
            stepping = device.start_timing()
            with probe.span("optimizer", window=window.step):
                result = self._step(gradients, figures)
                told = tell(figures, result)
            _stop(stepping)
            stepped = device.record()
            self._spread(stepped)
        return WindowEnd(
            window,
            stepped,
            told,
            result.lr,
            timings=(("sum", summing), ("optimizer", stepping)),
            # Streams read them of which the allocator knows nothing, and memory freed earlier would go to
            # whatever their owners receive meanwhile. A single replica's are read on their own stream.
            held=(taken, brought) if shared else None,
        )

    def _step(self, gradients: Sequence[Tensor], figures: Tensor) -> StepResult:
        """Enqueue a step, unless this window or one before was not finite or taught nothing."""
        for replica in self.replicas:
            replica.settled.order_stream()  # weights of the step before may still be read
        sound = teaches(figures)
        if self._sound is not None:
            sound = sound & self._sound
        result = self.optimizer.step(gradients, sound=sound)
        self._sound = result.skipped == 0
        return result

    def _bring(self, taken: Sequence[Tensors], trained: Sequence[Moment]) -> list[tuple[Tensors, Moment]]:
        """What the replicas have, on the leader's device, each with the moment when it is there."""
        others = zip(self._links, taken[1:], trained[1:], strict=True)
        return [(taken[0], trained[0]), *(link.bring(tensors, after) for link, tensors, after in others)]

    def _sum(self, brought: Sequence[tuple[Tensors, Moment]]) -> list[Tensor]:
        """In replica order, on the leader's device; the first replica's tensors become the sums."""
        totals: list[Tensor | None] = [None] * (len(self.leader.parameters) + 1)
        for tensors, arrived in brought:
            arrived.order_stream()
            for index, tensor in enumerate(tensors):
                total = totals[index]
                if total is None:
                    totals[index] = tensor
                elif tensor is not None:
                    total.add_(tensor)
        *gradients, figures = totals
        assert figures is not None, "a window was completed in which nothing was trained"
        zeros = (torch.zeros_like(parameter, dtype=torch.float32) for parameter in self.leader.parameters)
        return [*(z if t is None else t for t, z in zip(gradients, zeros, strict=True)), figures]

    def _spread(self, stepped: Moment) -> None:
        """Start copying the leader's weights to the other replicas, once they are those of `stepped`."""
        self.leader.settled = stepped
        new = [parameter.data for parameter in self.leader.parameters]
        for replica, link in zip(self.replicas[1:], self._links, strict=True):
            replica.settled = link.spread(new, [parameter.data for parameter in replica.parameters], stepped)

    def state(self) -> Mapping[str, Tensor]:
        """Optimizer state by name (see Optimizer.state)."""
        return self.optimizer.state()

    def restore(self, tensors: dict[str, Tensor], steps_done: int, *, updates: int) -> None:
        """Go on from a checkpoint: masters into every replica."""
        self.optimizer.restore(tensors, steps_done, updates=updates)
        self._spread(self.leader.device.record())
        for replica in self.replicas:
            replica.settled.wait()


def _stop(timing: Timing | None) -> None:
    if timing is not None:
        timing.stop()


def _wait_for_all(trained: Sequence[Moment], window: WindowInfo, probe: Probe) -> None:
    late = [moment for moment in trained if not moment.done()]
    if late:
        with probe.span("window_wait", window=window.step):
            for moment in late:
                moment.wait()
