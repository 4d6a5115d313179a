"""Bounds of indices that torch's CPU kernels use as addresses without checking them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import torch

from irgraph.execute.torch_values import Torch

Arguments: TypeAlias = Mapping[str, Torch]
"""Torch's values of a call's arguments, by the names of its schema."""

Bound: TypeAlias = Callable[[Arguments], int]
"""Function that returns the number of elements among which an index must be."""


def _rows(arguments: Arguments) -> int:
    return int(arguments["num_weights"])


def _bags(arguments: Arguments) -> int:
    return len(arguments["grad"])


def _weight_rows(arguments: Arguments) -> int:
    return len(arguments["weight"])


def _classes(arguments: Arguments) -> int:
    return int(arguments["log_probs"].shape[-1])


def _window_elements(axes: int) -> Bound:
    return lambda arguments: math.prod(arguments["self"].shape[-axes:])


_BAGS_BACKWARD: Mapping[str, Bound] = {"indices": _rows, "offset2bag": _bags}

UNCHECKED: Mapping[str, Mapping[str, Bound]] = {
    "aten._embedding_bag_backward": _BAGS_BACKWARD,
    "aten._embedding_bag_dense_backward": _BAGS_BACKWARD,
    "aten._embedding_bag_sparse_backward": _BAGS_BACKWARD,
    "aten._embedding_bag_per_sample_weights_backward": {
        "indices": _weight_rows, "offset2bag": _bags,
    },
    "aten.max_pool2d_with_indices_backward": {"indices": _window_elements(2)},
    "aten.max_pool3d_with_indices_backward": {"indices": _window_elements(3)},
    "aten.adaptive_max_pool2d_backward": {"indices": _window_elements(2)},
    "aten.adaptive_max_pool3d_backward": {"indices": _window_elements(3)},
    "aten.fractional_max_pool2d_backward": {"indices": _window_elements(2)},
    "aten.fractional_max_pool3d_backward": {"indices": _window_elements(3)},
}  # fmt: skip
"""Bound of each argument with indices, by operator."""

PER_CHANNEL = ("running_mean", "running_var", "weight", "bias")
"""Arguments of batch norms that have an element for each channel."""

COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)

MAXIMUM = 2
"""Mode of a lookup whose bags are maxima, the only one that reads ``maximum_indices``."""


def check_operands(name: str, arguments: Arguments) -> None:
    """Raise ``ValueError`` if an index among a call's arguments is out of bounds."""
    for argument, bound in UNCHECKED.get(name, {}).items():
        if argument in arguments and arguments[argument] is not None:
            _check_indices(argument, arguments[argument], bound(arguments))
    if arguments.get("mode") == MAXIMUM and "maximum_indices" in arguments:
        maxima = arguments["maximum_indices"]
        _check_indices("maximum_indices", maxima[maxima != -1], _rows(arguments))
    if "batch_norm" in name and "running_mean" in arguments:
        _check_channels(arguments)
    if {"log_probs", "targets"} <= arguments.keys():  # a loss whose targets are classes
        _check_indices("targets", _labels(arguments), _classes(arguments))
    check_sparse(arguments.values())


def _check_channels(arguments: Arguments) -> None:
    """Raise ``ValueError`` if an argument of a batch norm does not fit the number of channels."""
    channels = arguments["input"].shape[1]
    for name in PER_CHANNEL:
        value = arguments.get(name)
        if value is not None and value.numel() != channels:
            raise ValueError(f"{name} is out of bounds: {value.numel()} of {channels} channels")


def _labels(arguments: Arguments) -> Torch:
    """Return the targets without those after the end of each sample, which may be anything."""
    targets = arguments["targets"]
    if targets.dim() != 2:
        return targets
    lengths = torch.as_tensor(arguments["target_lengths"])
    return targets[torch.arange(targets.shape[1]) < lengths.unsqueeze(1)]


def check_sparse(values: Iterable[Torch]) -> None:
    """Raise ``ValueError`` if an index of a sparse tensor is out of bounds."""
    for value in values:
        if isinstance(value, (list, tuple)):
            check_sparse(value)
        elif isinstance(value, torch.Tensor) and value.layout == torch.sparse_coo:
            for axis, indices in enumerate(value._indices()):
                _check_indices(f"axis {axis} of a sparse tensor", indices, value.shape[axis])
        elif isinstance(value, torch.Tensor) and value.layout in COMPRESSED:
            _check_compressed(value)


def _check_compressed(value: Torch) -> None:
    is_by_row = value.layout in (torch.sparse_csr, torch.sparse_bsr)
    if is_by_row:
        indices = (value.crow_indices(), value.col_indices())
    else:
        indices = (value.ccol_indices(), value.row_indices())
    torch._validate_sparse_compressed_tensor_args(
        *indices, value.values(), value.shape, value.layout
    )


def _check_indices(name: str, indices: Torch, bound: int) -> None:
    if not indices.numel():
        return
    low, high = (int(index) for index in indices.aminmax())
    if low < 0 or high >= bound:
        index = low if low < 0 else high
        raise ValueError(f"index {index} of {name} is out of bounds for {bound} elements")
