"""Former names of operations in old tables, and their current names."""

from __future__ import annotations

import re

IRREGULAR_NAMES: dict[str, tuple[str, ...]] = {
    "LookupFunction": ("irgraph.batched_embedding",),
    "LookupFunctionBackward": (
        "irgraph.batched_embedding_backward",
        "irgraph.batched_embedding_sgd",
    ),
    "torch::autograd::AccumulateGrad": ("autograd.AccumulateGrad",),
}
"""Irregular names. ``LookupFunction`` is the batched embedding of the paper's DLRM: one
kernel for all tables, whose backward kernel also updates them."""


LAUNCHES = {
    "cudaLaunchKernel": "kernel",
    "cudaMemcpyAsync": "memcpy",
    "cudaMemsetAsync": "memset",
}
"""Runtime functions that start device work, and their kind of launch."""

_NODE = re.compile(r"^[A-Z]\w*Backward(\d*)$")


def current_names(old: str) -> tuple[str, ...]:
    """Return the current names of an operation by its name in traces of 2021 and 2022.

    ``aten::linear`` is ``aten.linear``; ``AddmmBackward`` and ``AddmmBackward0`` are
    ``autograd.AddmmBackward0``; labels such as ``Optimizer.step#SGD.step`` keep their words.
    """
    if old in IRREGULAR_NAMES:
        return IRREGULAR_NAMES[old]
    node = _NODE.match(old)
    if node:
        return (f"autograd.{old}" if node[1] else f"autograd.{old}0",)
    return (old.replace("::", "."),)
