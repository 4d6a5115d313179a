"""FlexAttention over meta tensors as the one kernel that ``torch.compile`` makes of it.

Torch's function checks its arguments; what it calls then is replaced by ``irgraph.flex_attention``,
which keeps what ``score_mod`` and ``mask_mod`` do as text.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from unittest import mock

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.emulate.flex.trace_score import aside, spelled
from irgraph.capture.emulate.known_values import KnownValues
from irgraph.ir.torch_schemas.flex import index_tensors, register_flex
from irgraph.ir.torch_schemas.score_functions import evaluate

MODULE = "torch.nn.attention.flex_attention"

FUSED = (
    "FlexAttention is priced as the one kernel that torch.compile generates; without it, a CUDA "
    "device computes the whole matrix of scores"
)
UNKNOWN = (
    "FlexAttention's mask reads tensors that have no values on meta: it is priced as if no block "
    "were masked"
)

MOST = 1 << 26
"""Elements of a mask that are looked at to tell its density."""

ALL = 1 << 30
"""A block size that stands for no mask (torch's ``_LARGE_SPARSE_BLOCK_SIZE``)."""


@contextlib.contextmanager
def flex_attention_on_meta(notes: dict[str, None]) -> Iterator[None]:
    """Let FlexAttention run as one op while it lasts; ``notes`` gets what is assumed."""
    register_flex()
    module = import_module(MODULE)
    empty = module._create_empty_block_mask

    def attend(*given: Torch) -> Torch:
        return _attend(notes, *given)

    def unmasked(query: Torch, key: Torch) -> Torch:
        with aside():
            return empty(query, key)

    with contextlib.ExitStack() as stack:
        for name, value in (
            ("flex_attention_hop", attend),
            ("_validate_device", lambda *_: None),
            ("_create_empty_block_mask", unmasked),
            ("_vmap_for_bhqkv", _broadcast),
            ("_ordered_to_dense", _dense),
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
    """Call the op that stands for the kernel; ``block_mask`` as ``BlockMask.as_tuple`` gives it."""
    import torch

    notes[FUSED] = None
    kind = query.device.type
    if torch.is_autocast_enabled(kind):
        query, key, value = (t.to(torch.get_autocast_dtype(kind)) for t in (query, key, value))
    buffers: list[Torch] = []
    working = torch.float64 if query.dtype == torch.float64 else torch.float32
    score = spelled(score_mod, working, buffers, query.device)
    block, mask_mod = block_mask[-3:-1], block_mask[-1]
    named: dict[str, Torch] = {"score": "" if score == "s" else score}
    if mask_mod is not import_module(MODULE).noop_mask:
        named["mask"] = spelled(mask_mod, None, buffers, query.device)
        named["density"] = _density(notes, named["mask"], buffers, block_mask, block)
    if options.get("OUTPUT_MAX"):
        named["max_scores"] = True
    op: Callable[..., tuple[Torch, Torch, Torch]] = torch.ops.irgraph.flex_attention
    return op(query, key, value, buffers=buffers, scale=scale, **named)


def _broadcast(
    function: Callable[..., Torch],
    prefix: Sequence[int | None],
    suffix: Sequence[int | None] = (),
    out_dims: Torch = 0,
    group_dim: bool = False,
) -> Callable[..., Torch]:
    """Return a function of all places that broadcasts, in place of torch's that maps over them."""

    def run(*given: Torch) -> Torch:
        *first, b, h, q, k = given
        buffers: list[Torch] = []
        score = first[0].dtype if first else None
        text = spelled(function, score, buffers, b.device)
        names = dict(zip(("s",), first, strict=False))
        for axis, (name, vector) in enumerate(zip("bhqk", (b, h, q, k), strict=True)):
            names[name] = vector.view([-1 if other == axis else 1 for other in range(4)])
        names |= {f"b{i}": buffer for i, buffer in enumerate(buffers)}
        made = evaluate(text, names, score)
        return made.expand(len(b), len(h), len(q), len(k))

    return run


def _dense(counts: Torch, columns: Torch, width: int) -> Torch:
    """Return a mask of blocks [..., rows, width] of how many each row has, and which they are.

    Torch's own maps over samples and heads, and writes by an index.
    """
    import torch

    places = torch.arange(columns.shape[-1], dtype=torch.int, device=columns.device)
    kept = torch.where(places < counts.unsqueeze(-1), columns, width)
    made = columns.new_zeros((*columns.shape[:-1], width + 1), dtype=torch.int32)
    return made.scatter_(-1, kept.long(), 1)[..., :width].contiguous()


def _density(
    notes: dict[str, None],
    mask: str,
    buffers: Sequence[Torch],
    block_mask: Sequence[Torch],
    block: Sequence[int],
) -> float:
    """Return the share of blocks of a mask that have anything to compute, 1 where it is unknown."""
    queries, keys, counts = block_mask[:3]
    known = _known()
    with aside():
        held = [known.value(buffer) if known else None for buffer in buffers]
    if any(value is None and f"b{i}" in mask for i, value in enumerate(held)):
        notes[UNKNOWN] = None
        return 1.0
    with aside():
        return _share(mask, held, [*counts.shape[:2], queries, keys], block)


def _share(mask: str, held: Sequence[Torch], shape: Sequence[int], block: Sequence[int]) -> float:
    """Return that share, of as many rows of blocks as may be looked at, evenly spread."""
    import torch

    samples, heads, queries, keys = map(int, shape)
    high, wide = (min(int(size), most) for size, most in zip(block, (queries, keys), strict=True))
    rows = -(-queries // high)
    looked = max(1, min(rows, MOST // max(samples * heads * high * keys, 1)))
    found = []
    for number in range(looked):
        row = number * (rows - 1) // max(looked - 1, 1) if looked > 1 else rows // 2
        names = index_tensors(shape, "cpu")
        names["q"] = names["q"][:, :, row * high : (row + 1) * high]
        names |= {f"b{i}": value for i, value in enumerate(held) if value is not None}
        counts = evaluate(mask, names, torch.float32)
        counts = counts.expand(samples, heads, names["q"].shape[2], keys).any(2)
        padded = torch.nn.functional.pad(counts, (0, -keys % wide))
        found.append(padded.unflatten(-1, (-1, wide)).any(-1).double().mean())
    return round(float(sum(found) / len(found)), 6) if found and not math.isnan(found[0]) else 1.0


def _known() -> KnownValues | None:
    """Return what the recording of this step knows of values."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    modes = _get_current_dispatch_mode_stack()
    return next((mode.known for mode in modes if hasattr(mode, "known")), None)
