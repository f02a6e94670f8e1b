"""Attention over documents of one row by two kernels: cuDNN's for long ones, another for the others.

The other one is a variable-length kernel. cuDNN's is the faster by far on Hopper, but knows no documents, and
builds a plan for each new shape, which takes a twentieth of a second. So a long document is attended by
itself, as a slice of the row whose length is rounded up. That is causal: a token sees what lies before it in
the slice, never what lies behind its document, and what comes out behind it is dropped. (A weight of 0 hides
whatever is finite: a neighbour with infinities may turn a document into NaNs, as it does the loss of its
batch.) Equal documents of a rounded length go together.

Shapes: T tokens of all documents, D documents, H heads, K key/value heads (H is a multiple), E head width,
n documents of p tokens each in a dense call. Knows nothing of targets.
"""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

worth_dense = 1024  # tokens of a document
granule = 256  # tokens: what lengths are rounded up to
most_plans = 64  # in a thread; torch keeps a thread's plans for ever
dense_dtypes = (torch.bfloat16, torch.float16)
dense_head_dim = 128  # at most, and a multiple of 8
dense_capability = (9, 0)  # of the GPU, at least
rounding = 2e-2  # how far two kernels may be apart, relative by the norm

# Causal, [n, p, H, E] with keys and values [n, p, K, E], by a scale; returns [n, p, H, E].
DenseCall = Callable[[Tensor, Tensor, Tensor, float], Tensor]
# Query, key, value, starts [D+1] int32, tokens of the longest document, scale; returns [T, H, E].
OthersCall = Callable[[Tensor, Tensor, Tensor, Tensor, int, float], Tensor]
Kind = tuple[torch.device, torch.dtype, int, int, int]


class DenseAttentionWarning(UserWarning):
    """Long documents are attended by the kernel of short ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Documents back to back, to be attended causally, each within itself."""

    query: Tensor  # [T, H, E]
    key: Tensor  # [T, K, E]
    value: Tensor  # [T, K, E]
    starts: Tensor  # [D+1] int32, first token of each document and T at the end
    host_starts: Sequence[int]  # the same numbers
    scale: float

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value

    @property
    def kind(self) -> Kind:
        query = self.query
        return query.device, query.dtype, query.shape[1], self.key.shape[1], query.shape[2]

    def token_by_token(self) -> Row:
        """The same with strides that do not depend on T, as plans are made for strides, too."""
        query, key, value = (x if x.stride(0) >= x.stride(1) else x.contiguous() for x in self.tensors)
        return replace(self, query=query, key=key, value=value)

    def longest(self, documents: Iterable[int] | None = None) -> int:
        """Tokens of the longest document, of these or of all."""
        chosen = range(len(self.host_starts) - 1) if documents is None else documents
        return max(self.host_starts[i + 1] - self.host_starts[i] for i in chosen)


@dataclass(frozen=True, slots=True)
class Dense:
    """One call: documents of one length back to back, each a row of its own."""

    first: int  # token
    documents: int
    length: int  # tokens of each
    given: int  # tokens that are attended for each

    @property
    def shape(self) -> tuple[int, int]:
        return self.documents, self.given

    @property
    def tokens(self) -> int:
        return self.documents * self.length


@dataclass(frozen=True, slots=True)
class Plan:
    """Which documents of a row are attended how: each in one call, or one of the others."""

    dense: tuple[Dense, ...]
    others: tuple[range, ...]  # numbers of neighbouring documents


def plan_calls(starts: Sequence[int], admits: Callable[[tuple[int, int]], bool]) -> Plan:
    """Dense calls for long documents if `admits` lets their shape (n, p) in; `starts` [D+1] ends with T."""
    dense, others = list[Dense](), list[int]()
    document = 0
    while document < len(starts) - 1:
        call = _dense_call(starts, document)
        if call is not None and admits(call.shape):
            dense.append(call)
            document += call.documents
        else:
            others.append(document)
            document += 1
    return Plan(tuple(dense), _runs(others))


def _dense_call(starts: Sequence[int], document: int) -> Dense | None:
    """For this document and those behind it that are alike; None when it is short."""
    first, length = starts[document], starts[document + 1] - starts[document]
    if length < worth_dense:
        return None
    given = -(-length // granule) * granule
    end = first + length
    if given == length:
        for start, stop in itertools.pairwise(starts[document + 1 :]):
            if stop - start != length:
                break
            end = stop
    return Dense(first, (end - first) // length, length, given)


def _runs(documents: Sequence[int]) -> tuple[range, ...]:
    """Ascending numbers as ranges."""
    runs = list[range]()
    for document in documents:
        if runs and runs[-1].stop == document:
            runs[-1] = range(runs[-1].start, document + 1)
        else:
            runs.append(range(document, document + 1))
    return tuple(runs)


class DenseKernel:
    """A dense kernel as long as it has proven itself in this process; threads use it at once."""

    def __init__(self, call: DenseCall) -> None:
        self._call = call
        self._changing = threading.RLock()  # proving may end in giving up
        self._serves: dict[Kind, bool] = {}
        self._threads = threading.local()
        self.failure: str | None = None  # why it is not used any more

    def suits(self, device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
        """Whether such tensors are for it, as far as can be said without trying."""
        return (
            self.failure is None
            and device.type == "cuda"
            and torch.cuda.get_device_capability(device) >= dense_capability
            and dtype in dense_dtypes
            and head_dim <= dense_head_dim
            and head_dim % 8 == 0
        )

    def serves(self, kind: Kind, others: OthersCall) -> bool:
        """Whether such tensors are for it; the first of a kind try it out, which waits for the device."""
        if kind not in self._serves:
            with self._changing:
                if kind not in self._serves:
                    device, dtype, *_, width = kind
                    self._serves[kind] = self.suits(device, dtype, width) and self._agrees(kind, others)
        return self.failure is None and self._serves[kind]

    def admits(self, row: Row, shape: tuple[int, int]) -> bool:
        """Whether this thread has a plan for n documents of p tokens of that row, or may make one."""
        plans: set[object] = self._threads.__dict__.setdefault("plans", set())
        plan = (row.kind, tuple(x.stride() for x in row.tensors), shape)
        if plan not in plans and len(plans) < most_plans:
            plans.add(plan)
        return plan in plans

    def attend(self, call: Dense, row: Row) -> Tensor | None:
        """The documents of that call, [tokens, H, E]; None when the kernel fails, and so is given up."""
        try:
            query, key, value = (_documents(x, call) for x in row.tensors)
            attended = self._call(query, key, value, row.scale)[:, : call.length]
        except torch.OutOfMemoryError:
            raise  # it is not the kernel's fault
        except RuntimeError as error:  # what torch raises for all that cuDNN does not like
            self.give_up(f"{call.documents} × {call.given} tokens: {_first_line(error)}")
            return None
        return attended.flatten(0, 1)

    def give_up(self, reason: str) -> None:
        """Not to be used from now on, in no thread. Says so the first time."""
        with self._changing:
            if self.failure is None:
                self.failure = reason
                text = f"cuDNN's attention is not used for long documents, which makes them slower: {reason}"
                warnings.warn(text, DenseAttentionWarning, stacklevel=3)

    def _agrees(self, kind: Kind, others: OthersCall) -> bool:
        """Whether it attends as the other kernel does, whatever lies behind a document; else give it up."""
        row = _made_up_row(kind)
        together = self.attend(Dense(0, 2, granule, granule), row)
        part = Dense(granule, 1, granule // 2 + 1, granule)
        first, again = (self.attend(part, it) for it in (row, _changed_behind(row, part)))
        if together is None or first is None or again is None:
            return False
        expected = others(*row.tensors, row.starts, granule, row.scale).float()
        apart = float((together.float() - expected).norm() / expected.norm())
        if not apart <= rounding:  # NaN is not
            self.give_up(f"its results are {apart:.2g} off those of the other kernel")
        elif not torch.equal(first, again):
            self.give_up("what lies behind a document changes its bits")
        return self.failure is None


def _made_up_row(kind: Kind) -> Row:
    """Two documents of one granule each."""
    device, dtype, heads, key_heads, width = kind
    generator = torch.Generator(device).manual_seed(0)  # the global one is left alone
    starts = range(0, 2 * granule + 1, granule)
    query, key, value = (
        torch.randn(starts[-1], h, width, generator=generator, device=device, dtype=dtype)
        for h in (heads, key_heads, key_heads)
    )
    on_device = torch.tensor(starts, dtype=torch.int32, device=device)
    return Row(query=query, key=key, value=value, starts=on_device, host_starts=starts, scale=width**-0.5)


def _changed_behind(row: Row, call: Dense) -> Row:
    """The same up to the end of that call's document."""
    end = call.first + call.length
    query, key, value = (torch.cat([x[:end], -3 * x[end:]]) for x in row.tensors)
    return replace(row, query=query, key=key, value=value)


def _documents(x: Tensor, call: Dense) -> Tensor:
    """Of x [T, heads, E] the documents of a call, [n, p, heads, E]: a view, unless the row ends too early."""
    size = call.documents * call.given
    part = x[call.first : call.first + size]
    if len(part) < size:
        part = functional.pad(part, (0, 0, 0, 0, 0, size - len(part)))
    return part.view(*call.shape, *part.shape[1:])


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def attend_by_length(row: Row, dense: DenseKernel, others: OthersCall) -> Tensor:
    """Long documents by the one kernel, the others by the other: [T, H, E].

    Enqueues only, but for the first call with tensors of a kind.
    """
    plan = None
    if row.longest() >= worth_dense and dense.serves(row.kind, others):
        row = row.token_by_token()
        plan = plan_calls(row.host_starts, partial(dense.admits, row))
    if plan is None or not plan.dense:
        return _attend_all(row, others)
    out = None
    for call in plan.dense:
        attended = dense.attend(call, row)
        if attended is None:
            return _attend_all(row, others)
        if len(attended) == len(row.query):
            return attended
        out = row.query.new_empty(row.query.shape) if out is None else out
        out[call.first : call.first + call.tokens] = attended
    assert out is not None
    if plan.others:
        _attend_others(plan.others, row, others, out)
    return out


def _attend_all(row: Row, others: OthersCall) -> Tensor:
    return others(*row.tensors, row.starts, row.longest(), row.scale)


def _attend_others(runs: tuple[range, ...], row: Row, others: OthersCall, out: Tensor) -> None:
    """The documents of these runs in one call, into their rows of `out`."""
    spans = [(row.host_starts[run.start], row.host_starts[run.stop]) for run in runs]
    query, key, value = (_gather([x[start:stop] for start, stop in spans]) for x in row.tensors)
    lengths = row.starts.diff()
    chosen = [lengths.new_zeros(1), *(lengths[run.start : run.stop] for run in runs)]
    starts = torch.cat(chosen).cumsum(0, dtype=torch.int32)
    longest = row.longest(itertools.chain(*runs))
    attended = others(query, key, value, starts, longest, row.scale)
    for (start, stop), rows in zip(spans, torch.split(attended, [b - a for a, b in spans]), strict=True):
        out[start:stop] = rows


def _gather(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def attend_with_cudnn(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Causal attention by cuDNN. [n, p, H, E], keys and values [n, p, K, E]; returns [n, p, H, E].

    Called past SDPA's choice of kernels, whose switches are the process's and keep cuDNN off.
    """
    heads_first = (x.transpose(1, 2) for x in (query, key, value))
    out: Tensor = torch.ops.aten._scaled_dot_product_cudnn_attention(
        *heads_first, None, False, 0.0, True, False, scale=scale
    )[0]
    return out.transpose(1, 2)


cudnn = DenseKernel(attend_with_cudnn)
