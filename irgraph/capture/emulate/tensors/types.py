"""Replacements of the tensor types of a card, such as ``torch.cuda.FloatTensor``."""

from __future__ import annotations

from collections.abc import Mapping

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.emulate.cards.answers import DEVICE

NAMES = ("Float", "Double", "Half", "BFloat16", "Byte", "Char", "Short", "Int", "Long", "Bool")
"""Names of element types within the names of tensor types."""


def tensor_types() -> Mapping[str, type]:
    """Return replacements by their names in ``torch.cuda``: ``FloatTensor`` and the like."""
    import torch

    return {f"{name}Tensor": _replacement(f"{name}Tensor", torch) for name in NAMES}


def _replacement(name: str, torch: Torch) -> type:
    """Return a class whose calls create a tensor on the card, and that has such instances."""
    host_type = getattr(torch, name)

    class TypeOfTensors(type):
        """Class of a tensor type."""

        def __instancecheck__(cls, instance: Torch) -> bool:
            is_tensor = isinstance(instance, torch.Tensor) and instance.dtype == host_type.dtype
            return is_tensor and instance.device.type == "meta"

        def __call__(cls, *args: Torch) -> Torch:
            if args and isinstance(args[0], (list, tuple)) and not isinstance(args[0], torch.Size):
                return torch.tensor(args[0], dtype=host_type.dtype, device=DEVICE)
            return torch.empty(*(args or (0,)), dtype=host_type.dtype, device=DEVICE)

    return TypeOfTensors(name, (), {"__module__": "torch.cuda", "dtype": host_type.dtype})
