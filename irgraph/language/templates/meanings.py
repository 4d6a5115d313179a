"""The meanings of irgraph's own fused ops: only a match that computes the same becomes one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from irgraph.ir.effects import is_view
from irgraph.ir.op import Op
from irgraph.verbs.refusal import RefusedError

RELU = ("a ReLU", ("relu", "relu_"))
PRODUCT = ("a product", ("linear", "addmm", "mm"))

PARTS: Mapping[str, Sequence[tuple[str, Sequence[str]]]] = {
    "irgraph.addmm_relu": (PRODUCT, RELU),
    "irgraph.linear_relu": (PRODUCT, RELU),
    "irgraph.mm_relu_backward": (PRODUCT, ("a ReLU's backward", ("threshold_backward",))),
    "irgraph.batched_gemm": (PRODUCT,),
    "irgraph.add_layer_norm": (
        ("a sum", ("add", "add_")),
        ("a layer norm", ("native_layer_norm", "layer_norm")),
    ),
}
"""The parts that each computes, and the ops that compute them."""


def check_meaning(members: Sequence[Op], new: Sequence[str]) -> None:
    """Refuse to fuse ops into one of irgraph's ops that computes something else."""
    parts = PARTS.get(new[0], ()) if len(new) == 1 else ()
    leaves = [leaf for member in members for leaf in member.leaves() if not is_view(leaf)]
    for leaf in leaves if parts else ():
        if not any(leaf.base in names for _, names in parts):
            part_names = " and ".join(part for part, _ in parts)
            raise RefusedError(
                f"{new[0]} is {part_names}, and {leaf.name} is neither", [(leaf, "")]
            )
    for part, names in parts:
        if not any(leaf.base in names for leaf in leaves):
            raise RefusedError(f"{new[0]} includes {part}, but no matched op is one")
