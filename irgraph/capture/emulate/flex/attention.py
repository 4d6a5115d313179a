"""FlexAttention over meta tensors as the one kernel that ``torch.compile`` generates.

Torch's function checks its arguments; the operator that it calls next is replaced by
``irgraph.flex_attention``, which has the computations of ``score_mod`` and ``mask_mod`` as text.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from unittest import mock

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.emulate.flex.trace_score import trace_function, without_recording
from irgraph.capture.emulate.known_values import KnownValues
from irgraph.ir.torch_schemas.registration import register_custom_ops
from irgraph.ir.torch_schemas.score_functions import evaluate, index_tensors

MODULE = "torch.nn.attention.flex_attention"

FUSED = (
    "FlexAttention is priced as the one kernel that torch.compile generates; without it, a CUDA "
    "device computes the whole matrix of scores"
)
UNKNOWN = (
    "FlexAttention's mask reads tensors that have no values on meta: it is priced as if no block "
    "were masked"
)

MAX_MASK_ELEMENTS = 1 << 26
"""Maximum number of elements of a mask that are evaluated to determine its density."""


@contextlib.contextmanager
def flex_attention_on_meta(notes: dict[str, None]) -> Iterator[None]:
    """Run FlexAttention as one op within the context; assumptions are added to ``notes``."""
    register_custom_ops()
    module = import_module(MODULE)
    original = module._create_empty_block_mask

    def attend(*arguments: Torch) -> Torch:
        return _attend(notes, *arguments)

    def create_empty_mask(query: Torch, key: Torch) -> Torch:
        with without_recording():
            return original(query, key)

    with contextlib.ExitStack() as stack:
        for name, value in (
            ("flex_attention_hop", attend),
            ("_validate_device", lambda *_: None),
            ("_create_empty_block_mask", create_empty_mask),
            ("_vmap_for_bhqkv", _broadcast),
            ("_ordered_to_dense", _dense_blocks),
            ("_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True),
            ("setup_compilation_env", lambda: contextlib.nullcontext("eager")),
        ):
            stack.enter_context(mock.patch.object(module, name, value))
        yield


def _attend(
    notes: dict[str, None],
    query: Torch,
    key: Torch,
    value: Torch,
    score_mod: Callable[..., Torch],
    block_mask: Sequence[Torch],
    scale: float,
    options: dict[str, Torch],
    *_: Torch,
) -> tuple[Torch, Torch, Torch]:
    """Call the op that replaces the kernel; ``block_mask`` is from ``BlockMask.as_tuple``."""
    import torch

    notes[FUSED] = None
    kind = query.device.type
    if torch.is_autocast_enabled(kind):
        query, key, value = (t.to(torch.get_autocast_dtype(kind)) for t in (query, key, value))
    buffers: list[Torch] = []
    compute_dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    score = trace_function(score_mod, compute_dtype, buffers, query.device)
    block, mask_mod = block_mask[-3:-1], block_mask[-1]
    keywords: dict[str, Torch] = {"score": "" if score == "s" else score}
    if mask_mod is not import_module(MODULE).noop_mask:
        keywords["mask"] = trace_function(mask_mod, None, buffers, query.device)
        keywords["density"] = _density(notes, keywords["mask"], buffers, block_mask, block)
    if options.get("OUTPUT_MAX"):
        keywords["max_scores"] = True
    op: Callable[..., tuple[Torch, Torch, Torch]] = torch.ops.irgraph.flex_attention
    return op(query, key, value, buffers=buffers, scale=scale, **keywords)


def _broadcast(
    function: Callable[..., Torch],
    prefix: Sequence[int | None],
    suffix: Sequence[int | None] = (),
    out_dims: Torch = 0,
    group_dim: bool = False,
) -> Callable[..., Torch]:
    """Return a function of all positions that broadcasts, whereas torch's maps over them."""

    def run(*arguments: Torch) -> Torch:
        *score_arguments, b, h, q, k = arguments
        buffers: list[Torch] = []
        score_dtype = score_arguments[0].dtype if score_arguments else None
        text = trace_function(function, score_dtype, buffers, b.device)
        value_by_name = dict(zip(("s",), score_arguments, strict=False))
        for axis, (name, vector) in enumerate(zip("bhqk", (b, h, q, k), strict=True)):
            value_by_name[name] = vector.view([-1 if other == axis else 1 for other in range(4)])
        value_by_name |= {f"b{i}": buffer for i, buffer in enumerate(buffers)}
        scores = evaluate(text, value_by_name, score_dtype)
        return scores.expand(len(b), len(h), len(q), len(k))

    return run


def _dense_blocks(counts: Torch, columns: Torch, width: int) -> Torch:
    """Return a mask [..., rows, width] from each row's number of blocks and their columns.

    Torch's own function maps over samples and heads, and writes by an index.
    """
    import torch

    positions = torch.arange(columns.shape[-1], dtype=torch.int, device=columns.device)
    used_columns = torch.where(positions < counts.unsqueeze(-1), columns, width)
    blocks = columns.new_zeros((*columns.shape[:-1], width + 1), dtype=torch.int32)
    return blocks.scatter_(-1, used_columns.long(), 1)[..., :width].contiguous()


def _density(
    notes: dict[str, None],
    mask: str,
    buffers: Sequence[Torch],
    block_mask: Sequence[Torch],
    block: Sequence[int],
) -> float:
    """Return the share of blocks of a mask with any visible element, 1 if it is unknown."""
    queries, keys, counts = block_mask[:3]
    known_values = _known_values_of_recording()
    with without_recording():
        buffer_values = [known_values.value(buffer) if known_values else None for buffer in buffers]
    if any(value is None and f"b{i}" in mask for i, value in enumerate(buffer_values)):
        notes[UNKNOWN] = None
        return 1.0
    with without_recording():
        return _visible_share(mask, buffer_values, [*counts.shape[:2], queries, keys], block)


def _visible_share(
    mask: str, buffer_values: Sequence[Torch], shape: Sequence[int], block: Sequence[int]
) -> float:
    """Return the share of blocks with any visible element, from evenly spaced rows of blocks.

    The number of rows is limited by ``MAX_MASK_ELEMENTS``.
    """
    import torch

    samples, heads, queries, keys = map(int, shape)
    block_rows, block_columns = (
        min(int(size), limit) for size, limit in zip(block, (queries, keys), strict=True)
    )
    rows = -(-queries // block_rows)
    sampled_rows = max(
        1, min(rows, MAX_MASK_ELEMENTS // max(samples * heads * block_rows * keys, 1))
    )
    shares = []
    for number in range(sampled_rows):
        row = number * (rows - 1) // max(sampled_rows - 1, 1) if sampled_rows > 1 else rows // 2
        value_by_name = index_tensors(shape, "cpu")
        value_by_name["q"] = value_by_name["q"][:, :, row * block_rows : (row + 1) * block_rows]
        value_by_name |= {
            f"b{i}": value for i, value in enumerate(buffer_values) if value is not None
        }
        visible = evaluate(mask, value_by_name, torch.float32)
        visible = visible.expand(samples, heads, value_by_name["q"].shape[2], keys).any(2)
        padded = torch.nn.functional.pad(visible, (0, -keys % block_columns))
        shares.append(padded.unflatten(-1, (-1, block_columns)).any(-1).double().mean())
    return (
        round(float(sum(shares) / len(shares)), 6) if shares and not math.isnan(shares[0]) else 1.0
    )


def _known_values_of_recording() -> KnownValues | None:
    """Return the known values of the recording of this step, ``None`` without a recording."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    modes = _get_current_dispatch_mode_stack()
    return next((mode.known_values for mode in modes if hasattr(mode, "known_values")), None)
