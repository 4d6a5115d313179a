"""Results made up for calls that the meta device cannot run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

Torch: TypeAlias = Any
"""An object of torch's: a tensor, a module, an operator; or what a call takes and gives."""


def run(func: Torch, args: Torch, kwargs: Torch, repaired: list[str]) -> Torch:
    """Run a call; one that needs values the meta device has not gets a stand-in."""
    import torch

    base = func._schema.name.partition("::")[2]
    first = args[0] if args and isinstance(args[0], torch.Tensor) else None
    on_meta = first is not None and first.device.type == "meta"
    if on_meta and base == "_local_scalar_dense":
        value = getattr(first, "found_value", 1)
        repaired.append(f"aten.item: a meta tensor has no value, {value} was returned")
        return torch.full((), value, dtype=first.dtype).item()  # type: ignore[union-attr]
    target = kwargs.get("device")
    if on_meta and base == "_to_copy" and target is not None and torch.device(target).type == "cpu":
        repaired.append("aten.to to the host: a meta tensor has no value, ones were returned")
        return torch.ones(first.shape, dtype=kwargs.get("dtype") or first.dtype)  # type: ignore[union-attr]
    if base == "_amp_foreach_non_finite_check_and_unscale_":
        args[1].found_value = 0  # else a gradient scaler would skip the optimizer's step
    try:
        return func(*args, **kwargs)
    except NotImplementedError:
        if not on_device(args, "meta") or not _only_writes(func):
            raise
        repaired.append(f"{func._schema.name}: does not run on the meta device, was skipped")
        return args[0] if func._schema.returns else None


def on_device(values: Sequence[Any], kind: str) -> bool:
    """Tell whether a tensor among values, lists opened, lies on a kind of device."""
    return any(
        on_device(value, kind)
        if isinstance(value, (list, tuple))
        else getattr(getattr(value, "device", None), "type", "") == kind
        for value in values
    )


def _only_writes(func: Torch) -> bool:
    """Tell whether a call gives back nothing, or its first operand that it wrote."""
    returns = func._schema.returns
    if len(returns) > 1:
        return False
    return all(value.alias_info is not None and value.alias_info.is_write for value in returns)
