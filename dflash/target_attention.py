"""Attention of targets over documents that lie back to back in one row, none of which sees another.

One operator, `dflash::attend_documents`, opaque to the compiler: on CUDA a variable-length kernel beside
cuDNN's (`dflash/dense_attention.py`), on the CPU SDPA document by document. Transformers calls it through its
attention interface, by the name `varlen`. The target hands the documents over as keyword arguments of its
forward call, so several may run at once in threads; rows that come without them are attended by SDPA. Knows
nothing of batches.

Shapes: T tokens of all documents, D documents, H heads, K key/value heads (H is a multiple), E head width.
"""

from __future__ import annotations

import inspect
import itertools
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dflash.contract.errors import ConfigError
from dflash.dense_attention import Row, attend_by_length, cudnn, worth_dense
from dflash.target_shapes import TargetSpec

varlen = "varlen_documents"  # for transformers, which takes any name with "flash" in it for its own kernels

kernel_dtypes = (torch.bfloat16, torch.float16)
kernel_head_dim = 256  # at most, and a multiple of 8
kernel_capability = (8, 0)  # of the GPU, at least
refused = ("sliding_window", "softcap", "s_aux", "position_bias")  # what the kernels would not heed


# Defined by hand: what `torch.library.custom_op` puts around every call takes a CPU as long as the rest of a
# layer's launches. Results must be tensors of their own, as nothing checks that any more.
# They are gone when it is.
operators = torch.library.Library("dflash", "FRAGMENT")  # type: ignore[no-untyped-call]
operators.define(  # type: ignore[no-untyped-call]
    "attend_documents(Tensor query, Tensor key, Tensor value, Tensor starts, Tensor host_starts, float scale)"
    " -> Tensor",
    tags=torch.Tag.pt2_compliant_tag,
)


def _attend_on_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts: Tensor,  # noqa: ARG001 - for kernels on CUDA
    host_starts: Tensor,
    scale: float,
) -> Tensor:
    out = query.new_empty(query.shape)
    for first, last in itertools.pairwise(host_starts.tolist()):
        q, k, v = (x[first:last].transpose(0, 1)[None] for x in (query, key, value))
        attended = functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scale, enable_gqa=True
        )
        out[first:last] = attended[0].transpose(0, 1)
    return out


def _attend_on_cuda(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, host_starts: Tensor, scale: float
) -> Tensor:
    row = Row(query=query, key=key, value=value, starts=starts, host_starts=host_starts.tolist(), scale=scale)
    return attend_by_length(row, cudnn, _variable_length).contiguous()


def _shape_only(query: Tensor, *_others: object) -> Tensor:
    return query.new_empty(query.shape)


for _device, _kernel in {"CPU": _attend_on_cpu, "CUDA": _attend_on_cuda}.items():
    operators.impl("attend_documents", _kernel, _device)  # type: ignore[no-untyped-call]
torch.library.register_fake("dflash::attend_documents", _shape_only, lib=operators)

# Causal attention within each document, enqueued. Returns [T, H, E].
# query [T, H, E]; key, value [T, K, E]; starts [D+1] int32, first token of each document and T at the end;
# host_starts [D+1] int64 the same on the CPU, as no device is waited for; scale of the scores.
attend_documents = torch.ops.dflash.attend_documents.default


def _variable_length(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, longest: int, scale: float
) -> Tensor:
    """The variable-length kernel over documents of at most `longest` tokens each."""
    if flash_attn_version() is not None:
        from flash_attn import flash_attn_varlen_func

        out: Tensor = flash_attn_varlen_func(
            query, key, value, starts, starts, longest, longest, softmax_scale=scale, causal=True
        )
    else:
        from torch.nn.attention.varlen import varlen_attn

        out = varlen_attn(
            query, key, value, starts, starts, longest, longest, scale=scale, **_torch_options()
        )  # type: ignore[assignment]
    return out


@cache
def _torch_options() -> dict[str, Any]:
    """How this torch is asked for causal attention of grouped heads; it has changed over versions."""
    from torch.nn.attention.varlen import varlen_attn

    known = inspect.signature(varlen_attn).parameters
    causal = {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}
    return causal | ({"enable_gqa": True} if "enable_gqa" in known else {})


@cache
def flash_attn_version() -> str | None:
    """Of the flash-attn package, when it is installed and can be imported."""
    try:
        import flash_attn  # noqa: F401

        return metadata.version("flash-attn")
    except (ImportError, metadata.PackageNotFoundError):
        return None


def varlen_kernel(device: torch.device, dtype: torch.dtype, spec: TargetSpec) -> str:
    """What attends on that device, in words; what has to be tried out for that is."""
    if device.type != "cuda":
        return "SDPA by document"
    version = flash_attn_version()
    kernel = f"flash-attn {version}" if version else "torch's flash attention"
    if not attends_dense(device, dtype, spec):
        return kernel
    return f"cuDNN for documents of {worth_dense} tokens and more, {kernel} for others"


def attends_dense(device: torch.device, dtype: torch.dtype, spec: TargetSpec) -> bool:
    """Whether long documents of such a target get a kernel of their own there."""
    if device.type != "cuda":
        return False
    return cudnn.serves((device, dtype, spec.heads, spec.kv_heads, spec.head_dim), _variable_length)


def varlen_obstacle(spec: TargetSpec, dtype: torch.dtype, device_type: str) -> str | None:
    """Why such a target cannot use it on such devices; None when it can."""
    if spec.attention_kinds != ("full_attention",):
        return f"the target has layers of kinds {', '.join(spec.attention_kinds)}"
    if device_type != "cuda":
        return None
    if flash_attn_version() is None and find_spec("torch.nn.attention.varlen") is None:
        return "neither flash-attn nor a torch with variable-length attention is installed"
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < kernel_capability:
        return "there is no GPU of the Ampere generation or later"
    if dtype not in kernel_dtypes:
        return f"its kernels do not take {str(dtype).removeprefix('torch.')}"
    if spec.head_dim > kernel_head_dim or spec.head_dim % 8:
        return f"its kernels do not take heads of width {spec.head_dim}"
    return None


def use_varlen(body: nn.Module) -> bool:
    """Let a transformers decoder attend through us; whether it does."""
    from transformers import AttentionInterface

    AttentionInterface.register(varlen, attend)
    body.set_attn_implementation(varlen)  # type: ignore[operator]
    return bool(body.config._attn_implementation == varlen)  # type: ignore[union-attr]


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    document_starts: Tensor | None = None,
    host_document_starts: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Transformers' attention interface: query [B, H, T, E], key, value [B, K, T, E]; returns [B, T, H, E].

    With `document_starts` and `host_document_starts` (`attend_documents` calls them starts and host_starts)
    B is 1 and the mask is not looked at, else SDPA.
    Raises ConfigError for a target that asks for more than the kernels know.
    """
    if document_starts is None or host_document_starts is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **others
        )
        return plain
    for name in refused:
        if others.get(name) is not None:
            raise ConfigError(
                "variable-length attention does not serve this target",
                where="target.attention",
                found=name,
                remedy="set target.attention to sdpa",
            )
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out: Tensor = attend_documents(q, k, v, document_starts, host_document_starts, scale)
    return out[None], None
