"""Whether a run fits into memory, before weights are loaded: shapes from configurations, room from devices.

The arithmetic is `dflash/contract/memory_plan.py`. Reads no weights: a target is built without memory to
count its parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import torch

from dflash.contract.activations import BatchShape, DrafterShape, TargetShape
from dflash.contract.cgroup import MemoryCgroup
from dflash.contract.config import TrainConfig
from dflash.contract.errors import DeviceError
from dflash.contract.memory_plan import Facts, Ledger, Line, find_remedy, host, plan_memory
from dflash.contract.sections import TransportChoice
from dflash.contract.taps import resolve_taps
from dflash.data.documents import Documents
from dflash.data.loading import load_documents
from dflash.data.slices import hold_out
from dflash.data.tokenizer import ChatTokenizer, open_tokenizer
from dflash.devices import Device, DeviceSet, open_devices, resolve_dtype
from dflash.drafter import DrafterSpec
from dflash.drafter_kernels import takes_tiles
from dflash.held_out import planned_bytes
from dflash.mask_token import resolve_mask_token
from dflash.packing import LayoutKind, lay_out, pack
from dflash.routes import Route, find_routes
from dflash.target import runs_compiled
from dflash.target_attention import varlen_obstacle
from dflash.target_shapes import TargetSpec
from dflash.target_weights import read_config
from dflash.window import plan_windows

if TYPE_CHECKING:
    from transformers import PretrainedConfig

windows_looked_at = 2000  # of the first epoch; later epochs mix the same documents anew


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a run needs and what there is."""

    facts: Facts
    ledger: Ledger
    free_bytes: dict[str, int | None]  # of each place; None: nobody says
    process_bytes: int = 0  # that this process had in host memory already: Python, libraries, the text

    def lacking(self) -> tuple[str, ...]:
        """Places that do not have what is needed, the worst first."""
        short = {place: self._missing(self.ledger, place) for place in self.ledger.places}
        return tuple(sorted((p for p, size in short.items() if size > 0), key=lambda p: -short[p]))

    def _missing(self, ledger: Ledger, place: str) -> int:
        free = self.free_bytes.get(place)
        return 0 if free is None else ledger.needed_bytes(place) - free

    def check(self) -> None:
        """Raises DeviceError when the run cannot fit."""
        lacking = self.lacking()
        if not lacking:
            return
        worst = lacking[0]
        others = f" (nor into {', '.join(lacking[1:])})" if lacking[1:] else ""
        free = self.free_bytes[worst]
        assert free is not None
        needed = self.ledger.needed_bytes(worst)
        raise DeviceError(
            # In words that a search takes for what it is.
            f"the run would go out of memory: it does not fit into that of {worst}{others}",
            where=worst,
            found=f"{gigabytes(needed)} needed\n" + "\n".join(_entries(self.ledger.at(worst), "    ")),
            expected=f"at most {gigabytes(free)}, which is free there",
            remedy=self._remedy(),
        )

    def _remedy(self) -> str:
        """Settings that are enough, or that none are."""
        worst = self.lacking()[0]
        found = find_remedy(
            self.facts, lambda ledger: not any(self._missing(ledger, p) > 0 for p in ledger.places)
        )
        if found is not None:
            return f"set {' and '.join(found)}, which trains the same"
        other = "more memory" if worst == host else "more GPUs to spread the roles over"
        return f"no settings are enough: it takes {other}, or a smaller target"

    def to_json(self) -> dict[str, Any]:
        """For run.json and `plan --json`. `facts`: what the plan was made of, so that another can be made."""
        plan = self.ledger.to_json(self.free_bytes)
        own = {"fits": not self.lacking(), "process_bytes": self.process_bytes}
        return {**plan, **own, "facts": asdict(self.facts)}

    def describe(self) -> str:
        """The ledger for people."""
        lines = []
        for place in self.ledger.places:
            free = self.free_bytes.get(place)
            of = "what is free there nobody says" if free is None else f"{gigabytes(free)} free"
            lines.append(f"{place}: {gigabytes(self.ledger.needed_bytes(place))} needed, {of}")
            lines += _entries(self.ledger.at(place), "  ")
        lines.append("peaks: " + ", ".join(f"{who} in {what}" for who, what in self.ledger.moments.items()))
        return "\n".join(lines)


def gigabytes(size: int) -> str:
    """Bytes for people, 10^9 each."""
    return f"{size / 1e9:.2f} GB"


def _entries(lines: Sequence[Line], indent: str) -> list[str]:
    return [f"{indent}{line.bytes / 1e9:9.3f} GB  {line.name} ({line.why})" for line in lines]


def plan_run(config: TrainConfig) -> MemoryPlan:
    """The plan of a run that nobody has prepared. Raises UsageErrors as `prepare` would."""
    tokenizer, devices = open_tokenizer(config.target, config.data), open_devices(config)
    routes = find_routes(devices, config.transport_choice, config.devices)
    documents, held_out = hold_out(load_documents(config, tokenizer), config)
    return make_plan(config, devices, documents, tokenizer, routes, held_out=held_out)


def make_plan(
    config: TrainConfig,
    devices: DeviceSet,
    documents: Documents,
    tokenizer: ChatTokenizer,
    routes: Sequence[Route],
    held_bytes: Mapping[str, int] | None = None,
    *,
    held_out: Documents | None = None,
) -> MemoryPlan:
    """The plan of a run on these devices with these documents. `routes`: of `find_routes`.

    `held_bytes`: what this process has already at each place and the run takes over or reuses. `held_out`:
    documents that are not trained on.
    """
    model = read_config(config.target.model)
    spec = TargetSpec.of(model, config.target.model)
    taps = resolve_taps(config.drafter, spec.layers)
    mask = resolve_mask_token(config.drafter.mask_token_id, tokenizer, spec.vocab)
    drafter = DrafterSpec.of(config.drafter, spec, taps, mask_token_id=mask)
    device_type = devices.targets[0].torch_device.type
    batch, several = _largest_batch(documents, config, _likely_layout(config, spec, device_type))
    each_bytes = resolve_dtype(config.target.dtype, device_type).itemsize
    facts = Facts(
        target=_target_shape(model, spec, taps[-1] + 1, each_bytes),
        drafter=_drafter_shape(drafter, resolve_dtype(config.drafter.dtype, device_type).itemsize),
        batch=batch,
        targets=tuple(_place(device) for device in devices.targets),
        drafters=tuple(_place(device) for device in devices.drafters),
        transport=_as_routed(config.transport_choice, routes),
        several_batches=several,
        compiled_target=runs_compiled(config.target.compile, spec, device_type),
        compiled_drafter=takes_tiles(config.drafter, drafter, device_type),
        checkpointing=config.drafter.checkpointing == "layers",
        chunk_blocks=config.objective.chunk_blocks,
        token_budget=config.pipeline.token_budget,
        longest=config.data.max_length,
        data_tokens=documents.tokens,
        prefetch_depth=config.pipeline.prefetch_depth,
        checkpoints=config.run.checkpoint_every >= 0,
        held_out_bytes=planned_bytes(held_out, config, len(taps) * spec.hidden * each_bytes),
    )
    free: dict[str, int | None] = {host: _host_free_bytes()}
    for device in devices.all:
        if not device.emulated:
            free[device.name] = torch.cuda.mem_get_info(device.torch_device)[0]
    for place, held in (held_bytes or {}).items():
        known = free.get(place)
        free[place] = None if known is None else known + held
    memory = psutil.Process().memory_info()
    own_bytes = memory.rss - memory.shared - (held_bytes or {}).get(host, 0)
    return MemoryPlan(facts, plan_memory(facts), free, max(own_bytes, 0))


def _as_routed(choice: TransportChoice, routes: Sequence[Route]) -> TransportChoice:
    """The choice as it comes out: `auto` needs slabs as soon as one pair goes through pinned memory."""
    if choice.path != "auto":
        return choice
    return replace(choice, path="pinned" if any(route.path == "pinned" for route in routes) else "peer")


def _place(device: Device) -> str:
    return host if device.emulated else device.name


def _likely_layout(config: TrainConfig, spec: TargetSpec, device_type: str) -> LayoutKind:
    """What the leak probe will most probably find; it needs a target to try."""
    choice = config.target.layout
    if choice != "auto":
        return choice  # type: ignore[return-value]
    if spec.attention_kinds != ("full_attention",):
        return "padded"
    dtype = resolve_dtype(config.target.dtype, device_type)
    attention = config.target.attention
    wanted = attention == "varlen" or (attention == "auto" and device_type == "cuda")
    return "flat" if wanted and varlen_obstacle(spec, dtype, device_type) is None else "packed"


def _largest_batch(documents: Documents, config: TrainConfig, kind: LayoutKind) -> tuple[BatchShape, bool]:
    """The most that a drafter and a target get at once, and whether a drafter gets several in some window.

    The documents are those of one batch, the rows perhaps those of another.
    """
    limit, block = config.objective.anchors_per_document, config.drafter.block_size
    anchors = np.minimum(documents.columns.candidates, limit)
    lengths, several = documents.lengths, False
    windows = plan_windows(lengths, config.window.tokens, seed=config.data.seed, epoch=0)
    batches = []
    for members in windows[: config.run.max_steps or windows_looked_at]:
        groups = pack(lengths[members], config.pipeline.token_budget, kind)
        several |= len(groups) > config.split.drafters
        batches += [members[group] for group in groups]
    most = max(batches, key=lambda batch: int(lengths[batch].sum() + anchors[batch].sum() * block))
    layouts = (lay_out(lengths[batch], kind) for batch in batches)
    rows, width = max(((layout.rows, layout.width) for layout in layouts), key=lambda size: size[0] * size[1])
    pairs = tuple(zip(lengths[most].tolist(), anchors[most].tolist(), strict=True))
    return BatchShape(documents=pairs, rows=rows, width=width, masked=kind == "packed"), several


def _target_shape(model: PretrainedConfig, spec: TargetSpec, layers: int, each_bytes: int) -> TargetShape:
    running, everything = _count_parameters(model, layers)
    return TargetShape(
        hidden=spec.hidden,
        layers=layers,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        inner=_inner_width(model, spec),
        vocab=spec.vocab,
        tied=spec.tied,
        body_parameters=running,
        loaded_parameters=everything + (0 if spec.tied else spec.vocab * spec.hidden),
        each_bytes=each_bytes,
    )


def _count_parameters(model: PretrainedConfig, layers: int) -> tuple[int, int]:
    """Weights of the embedding and the first layers, whatever kinds they are; and of the whole decoder."""
    from transformers import AutoModel

    from dflash.target_body import cut

    with torch.device("meta"):
        body: Any = AutoModel.from_config(model)  # type: ignore[no-untyped-call]
    everything = sum(parameter.numel() for parameter in body.parameters())
    cut(body, layers)
    return sum(parameter.numel() for parameter in body.parameters()), everything


def _inner_width(model: PretrainedConfig, spec: TargetSpec) -> int:
    """Elements of a token where a layer is widest: the MLP, its chosen experts, or a recurrent mixer."""
    experts = (getattr(model, "num_experts_per_tok", None) or 0) * (
        getattr(model, "moe_intermediate_size", None) or 0
    )
    shared = getattr(model, "shared_expert_intermediate_size", None) or 0
    keys = (getattr(model, "linear_num_key_heads", None) or 0) * (
        getattr(model, "linear_key_head_dim", None) or 0
    )
    values = (getattr(model, "linear_num_value_heads", None) or 0) * (
        getattr(model, "linear_value_head_dim", None) or 0
    )
    return max(spec.intermediate, experts + shared, 2 * (keys + values), spec.heads * spec.head_dim)


def _drafter_shape(spec: DrafterSpec, each_bytes: int) -> DrafterShape:
    return DrafterShape(
        hidden=spec.hidden,
        layers=spec.layers,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        intermediate=spec.intermediate,
        taps=len(spec.taps),
        block_size=spec.block_size,
        kinds=len(set(spec.layer_types)),
        vocab=spec.vocab,
        each_bytes=each_bytes,
    )


def _host_free_bytes(root: Path = Path("/")) -> int | None:
    """What the machine and the process's cgroup leave, whichever is less."""
    found = [MemoryCgroup.of_process(root=root).free_bytes(), _available_bytes(root)]
    return min((size for size in found if size is not None), default=None)


def _available_bytes(root: Path) -> int | None:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None
