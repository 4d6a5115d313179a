"""Converts the IR's values to torch's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch

from irgraph.ir.dtypes import TORCH
from irgraph.ir.op import Value
from irgraph.ir.schema import Argument
from irgraph.ir.tensor import DeviceRef, DType, Tensor, row_major
from irgraph.ir.torch_schemas.constants import CONSTANT_TYPES, torch_constant

Torch: TypeAlias = Any
"""An object of torch's: a tensor, a list of tensors, an operator."""

DTYPES: Mapping[str, torch.dtype] = {name: getattr(torch, word) for name, word in TORCH.items()}
"""Torch's element type for each of the IR's."""


def literal(argument: Argument, value: Value) -> Torch:
    """Return an argument without tensors in the form that torch requires."""
    kind = argument.type.rstrip("?")
    if isinstance(value, DType):
        return DTYPES[value]
    if isinstance(value, DeviceRef) or (kind == "Device" and value is not None):
        return torch.device("cpu")
    if kind in CONSTANT_TYPES and isinstance(value, str):
        return torch_constant(value)
    if kind == "Scalar" and isinstance(value, str):
        return complex(value)
    if argument.name == "pin_memory":
        return False
    if isinstance(value, tuple):
        return [literal(argument, item) for item in value]
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    return int(value)


def strides_of(tensor: Tensor) -> tuple[int, ...]:
    """Return a tensor's strides in elements, as plain numbers."""
    return tuple(map(int, tensor.strides or row_major(tensor.shape)))


def view_of(storage: Torch, tensor: Tensor, shift: int = 0) -> Torch:
    """Return the typed view of a storage that a tensor describes, ``shift`` bytes further on."""
    dtype = DTYPES[tensor.dtype]
    start = (int(tensor.offset) + shift) // tensor.itemsize
    view = torch.empty(0, dtype=dtype)
    return view.set_(storage, start, tuple(map(int, tensor.shape)), strides_of(tensor))


def start_of(value: Torch) -> int:
    """Return the byte offset of a tensor's first element in its storage."""
    return int(value.storage_offset()) * int(value.element_size())


def storage_of(value: Torch) -> int:
    """Return the address of a tensor's storage, 0 if it has none."""
    if value.layout != torch.strided or not value.numel():
        return 0
    return int(value.untyped_storage().data_ptr())
