"""The shape of the drafter that the golden files are of."""

from __future__ import annotations

from dflash.attention import full
from dflash.drafter import DrafterSpec

golden_spec = DrafterSpec(
    hidden=64,
    layers=3,
    heads=4,
    kv_heads=2,
    head_dim=24,
    intermediate=96,
    taps=(1, 3, 5),
    block_size=4,
    layer_types=(full, full, full),
    sliding_window=6,
    mask_token_id=96,
    rope_theta=1_000_000.0,
    rms_eps=1e-6,
    vocab=97,
    max_positions=512,
    target_layers=8,
)
