"""What operations were called when old tables were made, and what they are called today."""

from __future__ import annotations

import re

RENAMED: dict[str, tuple[str, ...]] = {
    "LookupFunction": ("irgraph.batched_embedding",),
    "LookupFunctionBackward": (
        "irgraph.batched_embedding_backward",
        "irgraph.batched_embedding_sgd",
    ),
    "torch::autograd::AccumulateGrad": ("autograd.AccumulateGrad",),
}
"""Names that follow no rule. ``LookupFunction`` is the batched embedding of the paper's DLRM: one
kernel for all tables, whose backward kernel also updates them."""


LAUNCHES = {
    "cudaLaunchKernel": "kernel",
    "cudaMemcpyAsync": "memcpy",
    "cudaMemsetAsync": "memset",
}
"""Runtime functions that start work of the device, and the kind of launch each is."""

_NODE = re.compile(r"^[A-Z]\w*Backward(\d*)$")


def today(old: str) -> tuple[str, ...]:
    """Return today's names of an operation as traces of 2021 and 2022 call it.

    ``aten::linear`` is ``aten.linear``; ``AddmmBackward`` and ``AddmmBackward0`` are
    ``autograd.AddmmBackward0``; labels such as ``Optimizer.step#SGD.step`` keep their words.
    """
    if old in RENAMED:
        return RENAMED[old]
    node = _NODE.match(old)
    if node:
        return (f"autograd.{old}" if node[1] else f"autograd.{old}0",)
    return (old.replace("::", "."),)
