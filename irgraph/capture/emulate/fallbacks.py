"""Substitute results of calls that the meta device cannot run."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.emulate.known_values import KnownValues
from irgraph.ir.torch_schemas.convolution_layout import with_cudnn_layout

UNKNOWN_COPY = "aten.to to the host: a meta tensor has no value, ones were returned"

COUNTS_BELOW_MINLENGTH = "aten.bincount: all values were taken to be below minlength, its size"

SAME_VALUES = "c10d.broadcast_: the values of this rank were taken for those of the sender"

KERNELS = (
    "Meta", "SparseMeta", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional",
    "CompositeImplicitAutograd",
)  # fmt: skip
"""Kinds of kernels that run on meta tensors."""


MASK = "output_mask"
"""The argument of backward operators that names the requested gradients."""


def run(
    func: Torch, args: Torch, kwargs: Torch, repaired: list[str], known_values: KnownValues
) -> Torch:
    """Return the results of a call; one that needs values of meta tensors gets the known values.

    If they are unknown, the call is skipped or returns ones, and a sentence is added to
    ``repaired``.
    """
    import torch

    base = func._schema.name.partition("::")[2]
    first = args[0] if args and isinstance(args[0], torch.Tensor) else None
    if first is not None and first.device.type == "meta":
        target = kwargs.get("device")
        is_copy_to_host = target is not None and torch.device(target).type == "cpu"
        if base == "_local_scalar_dense" or (base == "_to_copy" and is_copy_to_host):
            return _copy_to_host(func, args, kwargs, repaired, known_values)
    if base == "copy_" and on_device(args[:1], "cpu") and on_device(args[1:2], "meta"):
        return _fill_host_copy(args[0], args[1], repaired, known_values)
    if base == "_amp_foreach_non_finite_check_and_unscale_":
        # else a gradient scaler would skip the optimizer's step
        known_values.unknown.uniform.assume(args[1], 0)
    if _needs_values(func) and on_device(args, "meta"):
        with contextlib.suppress(KeyError):
            return known_values.meta_result(func, args, kwargs)
    if _adds_sparse(func, args):
        return _skip(func, args, repaired)
    try:
        result = _call_operator(func, args, kwargs)
    except NotImplementedError:
        if not on_device(args, "meta"):
            raise
        if func is torch.ops.aten.bincount.default:
            return _counts(*args, **kwargs, repaired=repaired)
        if not _only_writes(func):
            raise
        return _skip(func, args, repaired)
    if func.name() == "c10d::broadcast_":
        # forgetting them would break the agreement of ranks, such as on the order of buckets
        if known_values.value(args[0][0]) is not None:
            repaired.append(SAME_VALUES)
        return result
    known_values.follow(func, args, kwargs, result)
    known_values.unknown.follow(func, args, kwargs, result)
    return result


def _skip(func: Torch, args: Torch, repaired: list[str]) -> Torch:
    repaired.append(f"{func._schema.name}: does not run on the meta device, was skipped")
    return args[0] if func._schema.returns else None


def _counts(
    values: Torch, weights: Torch = None, minlength: int = 0, *, repaired: list[str]
) -> Torch:
    """Return counts of ``minlength`` values. Raises ``NotImplementedError`` without that size."""
    import torch

    if minlength == 0:
        raise NotImplementedError("aten::bincount: its size depends on values, without minlength")
    repaired.append(COUNTS_BELOW_MINLENGTH)
    kind = torch.int64
    if weights is not None:
        kind = weights.dtype if weights.dtype == torch.float32 else torch.float64
    return torch.empty(minlength, dtype=kind, device=values.device)


def _adds_sparse(func: Torch, args: Torch) -> bool:
    """Return whether a call adds a sparse tensor to a dense one, which fails on meta midway."""
    import torch

    is_add = func is torch.ops.aten.add_.Tensor and args[0].device.type == "meta"
    return is_add and getattr(args[1], "is_sparse", False) and not args[0].is_sparse


def _needs_values(func: Torch) -> bool:
    """Return whether a call has no kernel for meta tensors, or needs values for its sizes."""
    import torch

    if _only_writes(func):
        return False
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    has_meta_kernel = any(has_kernel(func.name(), key) for key in KERNELS)
    has_dynamic_shape = (
        torch.Tag.dynamic_output_shape in func.tags or func is torch.ops.aten._coalesce.default
    )
    return has_dynamic_shape or not has_meta_kernel


def _call_operator(func: Torch, args: Torch, kwargs: Torch) -> Torch:
    """Call an operator, with corrections of its meta kernel.

    Meta kernels clone sparse tensors without their elements, refuse grouped products in f32,
    return contiguous results for all convolutions, and gradients that a mask excludes.
    """
    import torch

    if func is torch.ops.aten.clone.default and args[0].is_sparse and on_device(args, "meta"):
        return _sparse_clone(args[0])
    is_grouped_product = func is torch.ops.aten._grouped_mm.default and on_device(args, "meta")
    if not is_grouped_product or args[0].dtype == torch.bfloat16:
        result = with_cudnn_layout(func._schema.name, args, func(*args, **kwargs))
        return _without_masked(func, args, kwargs, result)
    bf16_operands = [value.to(torch.bfloat16) for value in args[:2]]
    return func(*bf16_operands, *args[2:], **kwargs).to(args[0].dtype)


def _without_masked(func: Torch, args: Torch, kwargs: Torch, result: Torch) -> Torch:
    """Return results without the gradients that ``output_mask`` excludes, as CPU and CUDA do."""
    names = [argument.name for argument in func._schema.arguments]
    if MASK not in names:
        return result
    index = names.index(MASK)
    mask = args[index] if index < len(args) else kwargs.get(MASK)
    if mask is None or len(mask) != len(func._schema.returns):
        return result
    return tuple(
        gradient if is_requested else _excluded(gradient)
        for gradient, is_requested in zip(result, mask, strict=True)
    )


def _excluded(gradient: Torch) -> Torch:
    """Return the result for an excluded gradient; a list must stay a list."""
    return [] if isinstance(gradient, (list, tuple)) else None


def _sparse_clone(tensor: Torch) -> Torch:
    """Return a new sparse tensor with the same indices and the same number of elements."""
    import torch

    parts = (tensor._indices(), torch.empty_like(tensor._values()))
    clone = torch.sparse_coo_tensor(*parts, tensor.shape, check_invariants=False)
    return clone._coalesced_(tensor.is_coalesced())


def _copy_to_host(
    func: Torch, args: Torch, kwargs: Torch, repaired: list[str], known_values: KnownValues
) -> Torch:
    """Return a host copy of a meta tensor: its values if they are known, else ones."""
    import torch

    tensor, value = args[0], known_values.value(args[0])
    if value is not None:
        result = func(value, *args[1:], **kwargs)
        if isinstance(result, bool):
            known_values.unknown.note_known(result, repaired)
        return result
    if func._schema.name == "aten::_local_scalar_dense":
        number = known_values.unknown.read(tensor, repaired)
        return torch.full((), number, dtype=tensor.dtype).item()
    repaired.append(UNKNOWN_COPY)
    assumed = known_values.unknown.uniform.value(tensor)
    number = 1 if assumed is None else assumed
    return torch.full(tensor.shape, number, dtype=kwargs.get("dtype") or tensor.dtype)


def _fill_host_copy(
    host: Torch, tensor: Torch, repaired: list[str], known_values: KnownValues
) -> Torch:
    """Write a meta tensor's values to a host tensor if they are known, else ones."""
    value = known_values.value(tensor)
    if value is None:
        repaired.append(UNKNOWN_COPY)
        return host.fill_(1)
    return host.copy_(value)


def on_device(values: Sequence[Any], kind: str) -> bool:
    """Return whether a tensor among values, or in nested lists, is on a kind of device."""
    return any(
        on_device(value, kind)
        if isinstance(value, (list, tuple))
        else getattr(getattr(value, "device", None), "type", "") == kind
        for value in values
    )


def _only_writes(func: Torch) -> bool:
    """Return whether a call returns nothing, or only its first operand, which it writes."""
    returns = func._schema.returns
    if len(returns) > 1:
        return False
    return all(value.alias_info is not None and value.alias_info.is_write for value in returns)
