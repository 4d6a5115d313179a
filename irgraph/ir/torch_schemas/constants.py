"""Constants of torch that a file may name: layouts and memory formats."""

from __future__ import annotations

from typing import Any

CONSTANT_TYPES = ("Layout", "MemoryFormat")
"""Types of arguments whose values are such constants."""

CONSTANTS = frozenset((
    "strided", "jagged", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc",
    "_mkldnn", "contiguous_format", "preserve_format", "channels_last", "channels_last_3d",
))  # fmt: skip


def torch_constant(name: str) -> Any:  # noqa: ANN401  (a torch.layout or torch.memory_format)
    """Return the constant of a name; raise ``ValueError`` if it is none."""
    import torch

    if name not in CONSTANTS:
        raise ValueError(f"{name!r} is neither a layout nor a memory format")
    return getattr(torch, name)
