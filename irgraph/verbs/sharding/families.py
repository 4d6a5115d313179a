"""Families: parameters with the tensors of their optimizer's step, gradient and state."""

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
"""Prefix of torch's name of the scope of an optimizer's step."""


@dataclass
class Family:
    """A parameter and the tensors of its update, all of one shape.

    Attributes:
        parameter: its tensor.
        names: names of all tensors.
        refused_op: an op that prevents separate updates of its parts, ``""`` if there is none.
    """

    parameter: Tensor
    names: set[str] = field(default_factory=set)
    refused_op: str = ""


def find_families(scope: Op, parameters: Sequence[Tensor]) -> list[Family]:
    """Return the family of each parameter in an optimizer's step."""
    finder = _FamilyFinder(scope, [Family(tensor, {tensor.name}) for tensor in parameters])
    # A state may be written before the call that pairs it with its parameter (Adam's step counts,
    # its ``_foreach_mul_`` of the moments), so all calls are visited until no tensor is added.
    count = -1
    while count != len(finder.family_by_tensor):
        count = len(finder.family_by_tensor)
        for leaf in finder.leaves:
            finder.follow(leaf)
    return finder.families


class _FamilyFinder:
    """Search for the family of each parameter, call by call."""

    def __init__(self, scope: Op, families: list[Family]) -> None:
        self.leaves = [leaf for leaf in scope.leaves() if not is_label(leaf)]
        self.families = families
        self.family_by_tensor = {family.parameter.name: family for family in families}

    def follow(self, leaf: Op) -> None:
        """Add the tensors that a call pairs with a parameter to its family."""
        base = leaf.base.rstrip("_").removeprefix("_foreach_").removeprefix("_fused_")
        is_list_op = leaf.base.startswith(("_foreach_", "_fused_"))
        is_separable = base not in ROW_REDUCTIONS and (
            is_list_op or is_pointwise(leaf.name) or base in ROW_PRESERVING
        )
        # A call on lists is checked per position: the n-th elements of all lists are a row.
        for row in rows_of(leaf):
            owners = {
                id(self.family_by_tensor[t.name]): self.family_by_tensor[t.name]
                for t in row
                if t.name in self.family_by_tensor
            }
            for family in owners.values():
                if not is_separable or len(owners) > 1 or not self._accepts(family, leaf, row):
                    family.refused_op = leaf.name

    def _accepts(self, family: Family, leaf: Op, row: Sequence[Tensor]) -> bool:
        """Return whether a call's other tensors have the family's shape, or are single numbers."""
        written = {tensor.name for tensor in written_by(leaf)}
        for tensor in row:
            has_same_form = tensor.shape == family.parameter.shape and tensor.contiguous
            if has_same_form and tensor.numel > 1:
                family.names.add(tensor.name)
                self.family_by_tensor[tensor.name] = family
            elif tensor.numel != 1 or tensor.name in written:
                return False
        return True
