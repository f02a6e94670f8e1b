"""The smallest trainings that are still trainings, as knobs for `load_config`."""

from pathlib import Path

# A tenth of the embedded text: most of a small training's time would go to reading what it does not train on.
few_talks = ("data.path=" + str(Path(__file__).parent / "data/talks.jsonl"), "run.epochs=100")
_sizes = (
    *few_talks,
    "drafter.layers=1",
    "drafter.tap_count=2",
    "drafter.block_size=4",
    "data.max_length=64",
    "window.tokens=512",
    "run.max_steps=3",
    "run.checkpoint_every=-1",
)
on_logical_devices = (
    *_sizes,
    "objective.anchors_per_document=2",
    "pipeline.token_budget=128",
    "devices.kind=logical",
    "devices.link_gigabytes_per_s=50",
    "devices.pinned_gigabytes_per_s=50",
    "devices.pageable_gigabytes_per_s=50",
)
on_gpus = (
    *_sizes,
    "objective.anchors_per_document=4",
    "pipeline.token_budget=256",
    "devices.kind=cuda",
    "target.dtype=float32",
    "drafter.dtype=float32",
)
