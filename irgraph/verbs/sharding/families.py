"""Parameters, and what an optimizer's step pairs with each: its gradient, its state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from irgraph.ir.calls import is_pointwise
from irgraph.ir.effects import written_by
from irgraph.ir.live_out import is_label
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.verbs.sharding.tables import KEEPING, OVER_ROWS, rows_of

STEP = "Optimizer.step"
"""How the scope of an optimizer's step begins, as torch names it."""


@dataclass
class Family:
    """A parameter and what its update pairs it with, all of one form.

    Attributes:
        parameter: its tensor.
        names: of all tensors.
        refused: the op for which its parts cannot be updated apart, ``""`` where they can.
    """

    parameter: Tensor
    names: set[str] = field(default_factory=set)
    refused: str = ""


def follow(scope: Op, parameters: Sequence[Tensor]) -> list[Family]:
    """Return what belongs to each parameter in an optimizer's step."""
    following = _FamilyFinder(scope, [Family(tensor, {tensor.name}) for tensor in parameters])
    # A state may be written before the call that pairs it with its parameter (Adam's step counts,
    # its ``_foreach_mul_`` of the moments), so the calls are gone through until no tensor is new.
    known = -1
    while known != len(following.own):
        known = len(following.own)
        for leaf in following.leaves:
            following.follow(leaf)
    return following.families


class _FamilyFinder:
    """Finds what belongs to each parameter, call by call."""

    def __init__(self, scope: Op, families: list[Family]) -> None:
        self.leaves = [leaf for leaf in scope.leaves() if not is_label(leaf)]
        self.families = families
        self.own = {family.parameter.name: family for family in families}

    def follow(self, leaf: Op) -> None:
        """Let what a call pairs with a parameter belong to it."""
        base = leaf.base.rstrip("_").removeprefix("_foreach_").removeprefix("_fused_")
        lists = leaf.base.startswith(("_foreach_", "_fused_"))
        apart = base not in OVER_ROWS and (lists or is_pointwise(leaf.name) or base in KEEPING)
        # A call on lists is judged place by place: the n-th of each list belong together.
        for row in rows_of(leaf):
            owners = {id(self.own[t.name]): self.own[t.name] for t in row if t.name in self.own}
            for family in owners.values():
                if not apart or len(owners) > 1 or not self._takes(family, leaf, row):
                    family.refused = leaf.name

    def _takes(self, family: Family, leaf: Op, row: Sequence[Tensor]) -> bool:
        """Return whether a call's other tensors have the family's form, or are single numbers."""
        written = {tensor.name for tensor in written_by(leaf)}
        for tensor in row:
            alike = tensor.shape == family.parameter.shape and tensor.contiguous
            if alike and tensor.numel > 1:
                family.names.add(tensor.name)
                self.own[tensor.name] = family
            elif tensor.numel != 1 or tensor.name in written:
                return False
        return True
