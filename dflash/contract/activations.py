"""What forward and backward of a drafter and forward of a target hold besides weights, as named terms.

Counts what autograd keeps and what is there for a moment, from shapes alone: one Term a kind of tensor, so
that a count that a newer kernel changes is one line to correct. Unit tests hold the plain layers and the
compiler's cut to the tensors that autograd really keeps, `benchmarks/memory_plan.py` holds all to a GPU.
Knows nothing of torch, devices or weights.

Shapes: T context tokens, Q block slots, H hidden width, I width inside the MLP, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

float_bytes = 4
tile_rows = 128  # rows and columns of a tile: compiled kernels take rows in whole tiles,
least_tiles = 2  # and no fewer
# Of one document, in one call of the plain attention: its mask and scores stay small, and early blocks do not
# pay for context they cannot see.
blocks_per_call = 64


@dataclass(frozen=True, slots=True)
class Term:
    """Tensors of one kind that live at the same time."""

    name: str
    elements: int
    each_bytes: int

    @property
    def bytes(self) -> int:
        return self.elements * self.each_bytes


def total(terms: tuple[Term, ...]) -> int:
    """Bytes of all terms."""
    return sum(term.bytes for term in terms)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetShape:
    """The part of a target that runs. Widths in elements."""

    hidden: int
    layers: int  # that run: up to the last tap
    heads: int
    kv_heads: int
    head_dim: int
    inner: int  # I: what one token passes through inside a layer, at its widest
    vocab: int
    tied: bool  # head and embedding are one matrix
    body_parameters: int  # of the layers that run, with the embedding
    loaded_parameters: int  # of all layers, with embedding and head, as they are read
    each_bytes: int  # of a weight and of an activation


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterShape:
    """A drafter. Widths in elements."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    taps: int
    block_size: int
    kinds: int  # of layers, each with a mask of its own
    vocab: int
    each_bytes: int

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def layer_parameters(self) -> int:
        attention = 2 * self.hidden * (self.query_width + self.key_width) + 2 * self.head_dim
        return attention + 3 * self.hidden * self.intermediate + 2 * self.hidden

    @property
    def parameters(self) -> int:
        fuse = self.taps * self.hidden * self.hidden + self.hidden
        return fuse + self.layers * self.layer_parameters + self.hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """A batch as large as the run's largest, and the rows that a target runs it as."""

    documents: tuple[tuple[int, int], ...]  # (tokens, anchors) of each
    rows: int
    width: int
    masked: bool  # rows hold several documents behind a mask

    @property
    def tokens(self) -> int:
        return sum(tokens for tokens, _ in self.documents)

    @property
    def anchors(self) -> int:
        return sum(anchors for _, anchors in self.documents)

    def halved(self) -> BatchShape:
        """About what half the token budget would hold."""
        half = (len(self.documents) + 1) // 2
        documents = self.documents[:half]
        if half == len(self.documents):
            documents = tuple((max(1, tokens // 2), anchors) for tokens, anchors in documents)
        width = max(tokens for tokens, _ in documents)
        if self.rows == 1:  # perhaps one flat row of them all
            width = max(width, -(-self.width // 2))
        return BatchShape(documents=documents, rows=max(1, self.rows // 2), width=width, masked=self.masked)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterWork:
    """How a drafter is run on a batch, and what that keeps."""

    shape: DrafterShape
    batch: BatchShape
    compiled: bool  # compiled layers around FlexAttention, else plain ones around SDPA
    fused_loss: bool  # a compiled loss, else step by step
    checkpointing: bool
    chunk_blocks: int  # 0: all at once

    @property
    def slots(self) -> int:
        """Q, with padding."""
        return self._in_tiles(self.batch.anchors * self.shape.block_size)

    @property
    def context(self) -> int:
        """T, with padding."""
        return self._in_tiles(self.batch.tokens)

    def _in_tiles(self, rows: int) -> int:
        return max(least_tiles, -(-rows // tile_rows)) * tile_rows if self.compiled else rows

    def kept(self) -> tuple[Term, ...]:
        """What the whole forward keeps for its backward; received states are not counted here."""
        once = self._kept_once()
        if self.checkpointing:
            inputs = Term("inputs of layers", self.shape.layers * self.slots * self.shape.hidden, self._each)
            return (*once, inputs)
        return (*once, *self._layers(self.shape.layers))

    def closing(self) -> tuple[Term, ...]:
        """What the final norm keeps besides, and its outcome: until its own gradient has been computed."""
        states = self.slots * self.shape.hidden
        return (
            Term("last states before their norm", states if self.compiled else 0, self._each),
            Term("last states, normed", 0 if self.compiled else states, self._each),
            Term("last states", states, self._each),
        )

    def recomputed(self) -> tuple[Term, ...]:
        """What a checkpointed layer keeps while its gradient is computed."""
        return self._layers(1) if self.checkpointing else ()

    def _layers(self, count: int) -> tuple[Term, ...]:
        one = self._compiled_layer() if self.compiled else self._plain_layer()
        return tuple(Term(term.name, term.elements * count, term.each_bytes) for term in one)

    @property
    def _each(self) -> int:
        return self.shape.each_bytes

    def _kept_once(self) -> tuple[Term, ...]:
        shape, each = self.shape, self._each
        before = each if self.compiled else float_bytes  # the plain norm keeps it in float32
        context = self.context * shape.hidden
        padded = self.context != self.batch.tokens
        return (
            Term("received states, padded", padded * self.context * shape.taps * shape.hidden, each),
            Term("fused context before its norm", context, before),
            Term("fused context, normed", 0 if self.compiled else context, each),
            Term("fused context", context, each),
            Term("rotations", 2 * (self.context + self.slots) * shape.head_dim, each),
            Term("masks", self._mask_elements() * shape.kinds, float_bytes if self.compiled else 1),
            Term("inverse norms", self.context + self.slots, float_bytes),
        )

    def _compiled_layer(self) -> tuple[Term, ...]:
        """As torch's partitioner cuts it: products are kept, what lies between them is computed again."""
        shape, slots, context = self.shape, self.slots, self.context
        heads = 2 * shape.heads + shape.kv_heads  # log-sum-exp and inverse norms of queries; of keys
        return (
            Term("block states: entering, normed, halfway, normed", 4 * slots * shape.hidden, self._each),
            Term("queries: raw, rotated; their outputs", 3 * slots * shape.query_width, self._each),
            Term("raw keys", (slots + context) * shape.key_width, self._each),
            Term("keys and values", 2 * (slots + context) * shape.key_width, self._each),
            Term("MLP: gate, up, their product", 3 * slots * shape.intermediate, self._each),
            Term("inverse norms", slots * (heads + 2) + context * shape.kv_heads, float_bytes),
        )

    def _plain_layer(self) -> tuple[Term, ...]:
        shape, slots, context = self.shape, self.slots, self.context
        keys = sum(rows for _, rows in self._calls())
        return (
            # Halfway and leaving: float32 itself, or a copy in float32. What enters the first has none.
            Term("block states before norms", 2 * slots * shape.hidden, float_bytes),
            Term("block states normed, scaled", 4 * slots * shape.hidden, self._each),
            Term("queries before their norm", slots * shape.query_width, float_bytes),
            Term("queries normed, rotated; outputs, and in order", 4 * slots * shape.query_width, self._each),
            Term("keys before their norm", (slots + context) * shape.key_width, float_bytes),
            Term("keys normed", (slots + context) * shape.key_width, self._each),
            Term("keys and values by call", 2 * keys * shape.key_width, self._each),
            Term("masks as numbers", self._mask_elements(), self._each),
            Term("MLP: gate, its activation, up, their product", 4 * slots * shape.intermediate, self._each),
            Term(
                "inverse norms, log-sum-exp",
                slots * (2 + 2 * shape.heads + shape.kv_heads) + context * shape.kv_heads,
                float_bytes,
            ),
        )

    def _calls(self) -> Iterator[tuple[int, int]]:
        """(query rows, key rows) of each call of the plain attention, for anchors that lie evenly."""
        block = self.shape.block_size
        for tokens, anchors in self.batch.documents:
            for first in range(0, anchors, blocks_per_call):
                blocks = min(blocks_per_call, anchors - first)
                yield blocks * block, tokens * (first + blocks) // anchors + blocks * block

    def _mask_elements(self) -> int:
        if not self.compiled:
            return sum(queries * keys for queries, keys in self._calls())
        query_tiles = self.slots // tile_rows
        key_tiles = query_tiles + self.context // tile_rows
        return 4 * query_tiles * key_tiles + 2 * self.slots + 4 * (query_tiles + key_tiles)

    def head(self) -> tuple[Term, ...]:
        """What is there while the loss is computed, besides what is kept."""
        shape = self.shape
        blocks = min(self.chunk_blocks or self.batch.anchors, self.batch.anchors)
        logits = blocks * shape.block_size * shape.vocab
        # The gradient of one chunk goes once that of the next has been made.
        before = int(blocks < self.batch.anchors)
        if self.fused_loss:
            kept, work = (2 + before) * logits, 0
        else:  # exponentials, labels as zeros and ones (as truth values, too), their difference
            kept, work = (1 + before) * logits, 3 * logits + logits // 4
            work += logits if self._each < float_bytes else 0
        return (
            Term("logits and their gradient", kept, self._each),
            Term("softmax step by step", work, float_bytes),
            Term("gradient of last states", self.slots * shape.hidden, self._each),
        )

    def backward(self) -> tuple[Term, ...]:
        """What is there while a layer's gradient is computed, besides what is kept."""
        shape, slots = self.shape, self.slots
        # Least in the MLP. A compiled layer hands over all gradients of its weights at its end, when what it
        # kept for the MLP is gone.
        weights = shape.hidden * shape.intermediate
        if self.compiled:
            weights = max(weights, shape.layer_parameters - 3 * slots * shape.intermediate)
        return (
            Term("gradients of a layer's weights", weights, self._each),
            Term("gradient of block states", slots * shape.hidden, self._each),
            Term("gradients inside the MLP", 2 * slots * shape.intermediate, self._each),
            Term("gradient of the context", self.context * shape.hidden, self._each),
        )


def target_forward(shape: TargetShape, batch: BatchShape, *, compiled: bool) -> tuple[Term, ...]:
    """What is there at the widest point of a target's layer; tapped states are not counted here."""
    tokens = batch.rows * batch.width
    inner = 2 if compiled else 3  # gate, up; their product in its place, or beside them
    return (
        Term("states: embedded, entering, halfway, normed", 4 * tokens * shape.hidden, shape.each_bytes),
        Term("inside a layer", inner * tokens * shape.inner, shape.each_bytes),
        Term("rotations", 2 * tokens * shape.head_dim, shape.each_bytes),
        Term("mask of packed rows", batch.masked * tokens * batch.width, 1),
    )
