"""Assumed values of tensors whose elements are all equal: results of tests for ``nan`` and ``inf``.

Such tests guard a training step, so their operands are assumed finite. What follows from the
results, such as whether any element is ``nan``, is computed for one element.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from irgraph.capture.common.torch_object import Torch

RESULT_OF_TEST = {"isnan": 0.0, "isinf": 0.0, "isposinf": 0.0, "isneginf": 0.0, "isfinite": 1.0}
"""Results of tests of finite numbers, by the name of the op."""

SAME_TENSOR = {"ne": 0.0, "eq": 1.0}
"""Results of comparisons of a tensor with itself, or of its opposite with a number not finite."""

UNIFORM = frozenset(
    ("any", "all", "amax", "amin", "max", "min", "mean", "clone", "_to_copy", "cat", "stack",
     "index", "index_select", "gather", "repeat", "maximum", "minimum")
)  # fmt: skip
"""Ops with the same value for all elements as their operands, which are equal."""

FILLS = {"zero_": 0.0}


class UniformValues:
    """Assumed values by the memory of their tensors, which is uniform."""

    def __init__(self) -> None:
        self._memory: dict[int, tuple[Any, float]] = {}

    def value(self, tensor: Torch) -> float | None:
        """Return the assumed value of all elements, ``None`` if there is none."""
        import torch

        if not self._memory or tensor.layout != torch.strided:
            return None
        entry = self._memory.get(tensor.untyped_storage()._cdata)
        return None if entry is None or entry[0].expired() else float(entry[1])

    def assume(self, tensor: Torch, value: float) -> None:
        """Assume a value for all elements of a tensor's memory."""
        from torch.multiprocessing.reductions import StorageWeakRef

        storage = tensor.untyped_storage()
        self._memory[storage._cdata] = (StorageWeakRef(storage), value)

    def follow(self, func: Torch, args: Sequence[Torch], kwargs: Torch, result: Torch) -> None:
        """Assume the values of a call's result, or forget the values that it overwrote."""
        import torch

        name = func._schema.name.partition("::")[2]
        if not self._memory and name not in RESULT_OF_TEST and name not in SAME_TENSOR:
            return
        if not isinstance(result, torch.Tensor) or result.layout != torch.strided:
            return
        if func._schema.is_mutable:
            self._memory.pop(result.untyped_storage()._cdata, None)
        elif any(result is arg or _is_view(result, arg) for arg in args):
            return
        number = None if result.is_complex() else self._result(name, func, (args, kwargs), result)
        if number is not None:
            self.assume(result, number)

    def _result(
        self, name: str, func: Torch, call: tuple[Sequence[Torch], Torch], result: Torch
    ) -> float | None:
        args, kwargs = call
        if name in RESULT_OF_TEST:
            return RESULT_OF_TEST[name]
        if name in SAME_TENSOR and _is_test(args):
            return SAME_TENSOR[name] if args[0] is args[1] else 1 - SAME_TENSOR[name]
        if name in FILLS:
            return FILLS[name]
        numbers = self._operands((*args, *kwargs.values()))
        if not numbers:
            return None
        if name in UNIFORM:
            return numbers[0] if len(set(numbers)) == 1 else None
        if name == "sum":
            return float(numbers[0] * args[0].numel() / max(result.numel(), 1))
        return _of_one_element(func, args, kwargs, numbers) if _is_by_element(func) else None

    def _operands(self, args: Sequence[Torch]) -> list[float]:
        """Return the assumed values of all tensors among operands, none if one is unknown."""
        import torch

        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        if args and isinstance(args[0], (list, tuple)):
            tensors += [item for item in args[0] if isinstance(item, torch.Tensor)]
        numbers = [self.value(tensor) for tensor in tensors]
        return [number for number in numbers if number is not None] if None not in numbers else []


def _is_view(result: Torch, operand: Torch) -> bool:
    import torch

    if not isinstance(operand, torch.Tensor) or operand.layout != torch.strided:
        return False
    return bool(result.untyped_storage()._cdata == operand.untyped_storage()._cdata)


def _is_test(args: Sequence[Torch]) -> bool:
    """Return whether a tensor is compared with itself, or with a number that is not finite."""
    if len(args) < 2:
        return False
    is_infinite = isinstance(args[1], float) and not isfinite(args[1])
    return args[0] is args[1] or is_infinite


def _is_by_element(func: Torch) -> bool:
    """Return whether torch declares an operator as computed by element, without random numbers."""
    import torch

    return torch.Tag.pointwise in func.tags and torch.Tag.nondeterministic_seeded not in func.tags


def _of_one_element(
    func: Torch, args: Sequence[Torch], kwargs: Torch, numbers: Sequence[float]
) -> float:
    """Return the result of an op for one element."""
    import torch

    values = iter(numbers)

    def element(operand: Torch) -> Torch:
        is_tensor = isinstance(operand, torch.Tensor)
        return torch.full((), next(values), dtype=operand.dtype) if is_tensor else operand

    operands = [element(operand) for operand in args]
    options = {name: element(value) for name, value in kwargs.items()}
    return float(func(*operands, **options))
