"""What an op with a body takes and makes, found once: ops never change."""

from __future__ import annotations

from collections.abc import Mapping

from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor

MADE, TAKEN = "irgraph.ir.names.made", "irgraph.ir.names.taken"
"""Where an op keeps them."""

Named = Mapping[str, Tensor]


def made_by(op: Op) -> Named:
    """Return every tensor that an op and those below it make, by its name, outer ones first."""
    found: dict[str, Tensor] | None = op.__dict__.get(MADE)
    if found is None:
        found = {tensor.name: tensor for inner in op.walk() for tensor in inner.outputs}
        if op.body:
            op.__dict__[MADE] = found
    return found


def taken_by(op: Op) -> Named | None:
    """Return what an op and those below it use and do not make themselves, by its name.

    ``None`` where the verifier has to look closer: a name means two things inside, is made twice,
    is used before it is made, or is a result that nothing inside makes.
    """
    if TAKEN in op.__dict__:
        kept: dict[str, Tensor] | None = op.__dict__[TAKEN]
        return kept
    taken: dict[str, Tensor] = {}
    sound = _read(op, taken, {}, made_by(op))
    found = taken if sound and taken.keys().isdisjoint(made_by(op)) else None
    if op.body:
        op.__dict__[TAKEN] = found
    return found


def _read(op: Op, taken: dict[str, Tensor], made: dict[str, Tensor], whole: Named) -> bool:
    """Collect what is taken and made; return whether every name means one thing."""
    for tensor in op.inputs:
        known = made.get(tensor.name) or taken.setdefault(tensor.name, tensor)
        if known is not tensor and known != tensor:
            return False
    if not all(tensor.name not in made and whole[tensor.name] == tensor for tensor in op.outputs):
        return False
    if not all(_read(child, taken, made, whole) for child in op.body):
        return False
    lost = op.body and not op.is_autograd and any(t.name not in made for t in op.outputs)
    made.update({tensor.name: tensor for tensor in op.outputs})
    return not lost
