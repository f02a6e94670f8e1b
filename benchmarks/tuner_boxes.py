"""Machines and jobs that a simulated tuning problem is made of, drawn by seed.

Ranges follow what was measured on real machines where there is such a figure (docs/benchmarks), else what
people told of theirs. Knows nothing of configurations or of what anything costs together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A machine of one node: rates in bytes/s, of one copy with nothing beside it unless said otherwise."""

    gpus: int
    gpu_bytes: float
    peer_rate: float  # between GPUs of one socket
    cross_rate: float  # between GPUs of two sockets
    pinned_rate: float
    pageable_down_rate: float  # into fresh pages: the page faults are most of it
    pageable_up_rate: float
    host_rate: float  # of all copies of the machine together
    far_share: float  # of its rate that a pinned copy keeps on the socket away from the buffers
    host_bytes: float  # the limit of the process
    launch_s: float  # of Python for one kernel launch
    convoy: float  # how much longer Python takes for each other busy thread
    loaders: int  # threads that prepare batches
    loader_rate: float  # tokens/s of each

    def socket(self, gpu: int) -> int:
        """Of two sockets, the one that a GPU hangs on."""
        return gpu * 2 // self.gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is trained, with what: rates of one GPU with large batches and nothing beside."""

    target_rate: float  # tokens/s
    target_half: float  # tokens of a batch at which half of the rate is lost
    target_launches: int  # of a forward
    drafter_rate: float
    drafter_half: float
    drafter_launches: int
    sag: float  # time added for each doubling of a batch beyond 16k tokens
    step_s: float  # optimizer
    merge_s: float  # sum of gradients, a further drafter
    window_tokens: int
    token_bytes: float  # of hidden states
    mean_length: float  # of documents
    spread: float  # relative deviation of a document's work
    recompute: float  # of drafter time that checkpointing adds
    chunk_s: float  # of a block of logits, when they are made in blocks
    trim_share: float  # of the bytes that trimming leaves out
    trim_s: float  # a gigabyte, for finding out which
    sharing_gain: float  # how much more a GPU does with both roles on it
    peer_tax: float  # of computing time, while peer copies pass
    pinned_tax: float
    target_bytes: float  # weights
    target_token_bytes: float  # activations
    drafter_bytes: float  # weights, gradients, moments
    drafter_token_bytes: float  # activations kept for the backward pass
    logit_token_bytes: float
    fragments: float  # share of activations lost between blocks
    thrash: float  # how much slower a nearly full GPU is

    @property
    def most_bytes(self) -> float:
        """Hidden states of the largest batch there may be."""
        return self.window_tokens * self.token_bytes


def draw_box(draw: np.random.Generator, gpus: int) -> Box:
    """A machine: with fast links between its GPUs, with PCIe, or without a way from GPU to GPU."""
    links = draw.choice(["nvlink", "pcie", "none"], p=[0.35, 0.4, 0.25])
    peer = {"nvlink": _between(draw, 150, 390), "pcie": _between(draw, 18, 50), "none": _between(draw, 3, 8)}
    cross = {"nvlink": 1.0, "pcie": draw.uniform(0.4, 0.9), "none": draw.uniform(0.7, 1.0)}
    pinned = _between(draw, 20, 55)
    return Box(
        gpus=gpus,
        gpu_bytes=float(draw.choice([80, 96, 141])) * GB,
        peer_rate=peer[links] * GB,
        cross_rate=peer[links] * cross[links] * GB,
        pinned_rate=pinned * GB,
        pageable_down_rate=_between(draw, 1.0, 4.0) * GB,
        pageable_up_rate=_between(draw, 6, 19) * GB,
        host_rate=pinned * draw.uniform(1.0, 2.5) * GB,
        far_share=draw.uniform(0.3, 0.95),
        host_bytes=float(draw.choice([256, 384, 512, 1024])) * GB,
        launch_s=_between(draw, 4e-6, 10e-6),
        convoy=draw.uniform(0.05, 0.35),
        loaders=int(draw.choice([1, 2, 4])),
        loader_rate=0.0,
    )


def draw_job(draw: np.random.Generator, box: Box) -> Job:
    """A job for that machine."""
    rate = _between(draw, 4e3, 40e3)
    # How many targets keep one drafter busy: the split of GPUs that a job asks for.
    ratio = _between(draw, 0.3, 1.3 * box.gpus)
    hidden = int(draw.choice([2048, 2560, 4096, 5120]))
    taps = int(draw.choice([5, 5, 6]))
    return Job(
        target_rate=rate,
        target_half=_between(draw, 300, 2500),
        target_launches=int(_between(draw, 1000, 9000)),
        drafter_rate=rate * ratio,
        drafter_half=_between(draw, 300, 4000),
        drafter_launches=int(_between(draw, 600, 2500)),
        sag=draw.uniform(0.0, 0.05),
        step_s=_between(draw, 0.007, 0.06),
        merge_s=_between(draw, 0.003, 0.04),
        window_tokens=int(draw.choice([131072, 196608, 262144])),
        token_bytes=hidden * (taps + 1) * 2.0,
        mean_length=_between(draw, 500, 3000),
        spread=draw.uniform(0.2, 0.6),
        recompute=draw.uniform(0.15, 0.33),
        chunk_s=_between(draw, 0.2e-3, 3e-3),
        trim_share=draw.uniform(0.02, 0.3),
        trim_s=_between(draw, 1e-3, 12e-3),
        sharing_gain=draw.uniform(0.8, 1.08),
        peer_tax=draw.uniform(0.0, 0.06),
        pinned_tax=draw.uniform(0.0, 0.05),
        target_bytes=min(_between(draw, 3, 60) * GB, 0.5 * box.gpu_bytes),
        target_token_bytes=_between(draw, 60e3, 300e3),
        drafter_bytes=_between(draw, 6, 30) * GB,
        drafter_token_bytes=_between(draw, 200e3, 900e3),
        logit_token_bytes=_between(draw, 100e3, 500e3),
        fragments=draw.uniform(0.02, 0.15),
        thrash=draw.uniform(0.05, 0.3),
    )


def tuned_host(draw: np.random.Generator, box: Box, job: Job) -> Box:
    """The machine with loaders for that job: sometimes nearly the limit, mostly not."""
    wanted = job.target_rate * max(box.gpus - 1, 1)
    return replace(box, loader_rate=float(wanted * _between(draw, 0.7, 3.0) / box.loaders))


def _between(draw: np.random.Generator, low: float, high: float) -> float:
    """Evenly on the scale of ratios."""
    return float(np.exp(draw.uniform(np.log(low), np.log(high))))
