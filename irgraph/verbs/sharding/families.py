"""Parameters, and what an optimizer's step pairs with each: its gradient, its state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from irgraph.ir.calls import is_pointwise
from irgraph.ir.effects import written_by
from irgraph.ir.live_out import is_label
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.verbs.sharding.tables import ROW_PRESERVING, ROW_REDUCTIONS, rows_of

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
    refused_op: str = ""


def find_families(scope: Op, parameters: Sequence[Tensor]) -> list[Family]:
    """Return what belongs to each parameter in an optimizer's step."""
    finder = _FamilyFinder(scope, [Family(tensor, {tensor.name}) for tensor in parameters])
    # A state may be written before the call that pairs it with its parameter (Adam's step counts,
    # its ``_foreach_mul_`` of the moments), so the calls are gone through until no tensor is new.
    count = -1
    while count != len(finder.own):
        count = len(finder.own)
        for leaf in finder.leaves:
            finder.follow(leaf)
    return finder.families


class _FamilyFinder:
    """Finds what belongs to each parameter, call by call."""

    def __init__(self, scope: Op, families: list[Family]) -> None:
        self.leaves = [leaf for leaf in scope.leaves() if not is_label(leaf)]
        self.families = families
        self.own = {family.parameter.name: family for family in families}

    def follow(self, leaf: Op) -> None:
        """Let what a call pairs with a parameter belong to it."""
        base = leaf.base.rstrip("_").removeprefix("_foreach_").removeprefix("_fused_")
        is_list_op = leaf.base.startswith(("_foreach_", "_fused_"))
        is_separable = base not in ROW_REDUCTIONS and (
            is_list_op or is_pointwise(leaf.name) or base in ROW_PRESERVING
        )
        # A call on lists is judged place by place: the n-th of each list belong together.
        for row in rows_of(leaf):
            owners = {id(self.own[t.name]): self.own[t.name] for t in row if t.name in self.own}
            for family in owners.values():
                if not is_separable or len(owners) > 1 or not self._accepts(family, leaf, row):
                    family.refused_op = leaf.name

    def _accepts(self, family: Family, leaf: Op, row: Sequence[Tensor]) -> bool:
        """Return whether a call's other tensors have the family's form, or are single numbers."""
        written = {tensor.name for tensor in written_by(leaf)}
        for tensor in row:
            has_same_form = tensor.shape == family.parameter.shape and tensor.contiguous
            if has_same_form and tensor.numel > 1:
                family.names.add(tensor.name)
                self.own[tensor.name] = family
            elif tensor.numel != 1 or tensor.name in written:
                return False
        return True
