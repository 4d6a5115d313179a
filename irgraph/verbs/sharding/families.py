"""Families: parameters with the tensors of their updates that ranks split along with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from irgraph.ir.effects import written_by
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.ops.book import meaning_of
from irgraph.ops.places import ONCE, split_claim
from irgraph.verbs.sharding.choices.candidates import changed_tensors, positions

STEP = "Optimizer.step"
"""Prefix of torch's name of the scope of an optimizer's step."""


@dataclass
class Family:
    """A parameter and the tensors that are split if it is.

    Attributes:
        parameter: its tensor.
        axes: the axis along which each tensor is split, by name.
        refused_op: an op that prevents updates of parts, ``""`` if there is none.
    """

    parameter: Tensor
    axes: dict[str, int] = field(default_factory=dict)
    refused_op: str = ""


def companions(call: Op, tensor: Tensor, axis: int) -> Mapping[str, int] | None:
    """Return the axes of the tensors of a call that are split if one is split along an axis.

    ``None`` if its blocks need blocks of other ranks.
    """
    meaning = meaning_of(call)
    tensors = (*call.inputs, *changed_tensors(call))
    if meaning is None or len(meaning.operands) + len(meaning.results) != len(tensors):
        return None
    axes = (*meaning.operands, *(result.axes for result in meaning.results))
    letter = next(a[axis] for t, a in zip(tensors, axes, strict=True) if t.name == tensor.name)
    claim = split_claim(meaning, letter) if isinstance(letter, str) else None
    if claim is None:
        return None
    places = (*claim.operands, *claim.results)
    if any(place.kind == "partial" or place.outer != ONCE for place in places):
        return None
    pairs = zip(tensors, places, strict=True)
    return {t.name: place.axis for t, place in pairs if place.kind == "split"}


def find_families(leaves: Iterable[Op], axes: Sequence[tuple[Tensor, int]]) -> list[Family]:
    """Return the families of parameters, each split along an axis, in some ops."""
    families = [Family(tensor, {tensor.name: axis}) for tensor, axis in axes]
    owners = {family.parameter.name: family for family in families}
    calls = [call for leaf in leaves for call in positions(leaf)]
    # A state may be written before the call that pairs it with its parameter (Adam's step counts,
    # its ``_foreach_mul_`` of the moments), so all calls are visited until no tensor is added.
    count = -1
    while count != len(owners):
        count = len(owners)
        for call in calls:
            _follow(call, owners)
    return families


def _follow(call: Op, owners: dict[str, Family]) -> None:
    """Add the tensors that a call pairs with a family's tensor to the family."""
    for tensor in (*call.inputs, *call.outputs):
        family = owners.get(tensor.name)
        if family is None or family.refused_op:
            continue
        paired = companions(call, tensor, family.axes[tensor.name])
        if paired is None and tensor not in (*call.inputs, *written_by(call)):
            # a complete result is cut afterwards
            continue
        if paired is None or any(owners.get(name, family) is not family for name in paired):
            family.refused_op = call.name
            continue
        for name, axis in paired.items():
            if family.axes.setdefault(name, axis) != axis:
                family.refused_op = call.name
            owners[name] = family
