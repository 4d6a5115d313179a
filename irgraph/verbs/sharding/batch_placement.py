"""Placements of a rank's tensors, if every rank runs the step on a part of the batch.

A tensor is the ``same`` on all ranks, a ``split`` of the full tensor along the axis of the batch,
or a ``part`` of a sum over ranks. Gradients of a mean loss are larger on a rank than in the full
step, because the rank divides by its own batch: ``factor`` is the power of the number of ranks by
which they are larger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from irgraph.ir.dim import Dim
from irgraph.ir.op import Op, Value, tensors_in
from irgraph.ir.tensor import Tensor
from irgraph.verbs.refusal import RefusedError, op_refusal


class BatchPlacement(Struct, frozen=True):
    """Relation of one rank's tensor to the full tensor: ``same``, ``split`` or ``part``.

    Attributes:
        kind: as described in the module; ``zero`` is both ``same`` and ``part``.
        factor: power of the number of ranks by which the rank's tensor is larger.
    """

    kind: str
    factor: int = 0


SAME, SPLIT, ZERO = BatchPlacement("same"), BatchPlacement("split"), BatchPlacement("zero")


class PartialSumError(Exception):
    """An op needs full values of a tensor of which ranks have parts of a sum."""


def batch_axis(tensor: Tensor, dim: str) -> int | None:
    """Return the axis along which a tensor is split, ``None`` if none depends on the batch.

    Raises ``RefusedError`` if several axes do, or if one is no multiple of the batch.
    """
    axes = [axis for axis, size in enumerate(tensor.shape) if depends(size, dim)]
    if not axes:
        return None
    size = tensor.shape[axes[0]]
    if len(axes) > 1 or not isinstance(size, Dim) or [t[0] for t in size.terms] != [(dim,)]:
        shape = ", ".join(map(str, tensor.shape))
        raise RefusedError(f"%{tensor.name} [{shape}] cannot be split along one axis over {dim}")
    return axes[0]


def depends(size: int, dim: str) -> bool:
    """Return whether a size depends on a dimension."""
    return isinstance(size, Dim) and any(dim in names for names, _ in size.terms)


class BatchCall(Struct, frozen=True):
    """An op with the placements of its operands, and the dimension of the batch."""

    op: Op
    placements: Mapping[str, BatchPlacement]
    dim: str

    def placement_of(self, tensor: Tensor) -> BatchPlacement:
        """Return the placement of an operand."""
        return self.placements[tensor.name]

    def axis(self, tensor: Tensor) -> int | None:
        """Return the axis of the batch of a tensor, ``None`` if it has none."""
        return batch_axis(tensor, self.dim)

    def placements_of(self, values: Sequence[Value] | None = None) -> list[BatchPlacement]:
        """Return the placements of the tensors among values (default: all operands)."""
        tensors = self.op.inputs if values is None else tensors_in(values)
        return [self.placement_of(tensor) for tensor in tensors]

    def option(self, name: str, position: int, default: Value = None) -> Value:
        """Return an argument by its name, or by its position among the operands."""
        operands = self.op.operands
        return self.op.attributes.get(
            name, operands[position] if position < len(operands) else default
        )

    @property
    def counts(self) -> list[Dim]:
        """The numbers among the arguments that depend on the size of the batch."""
        values = (*self.op.operands, *self.op.attributes.values())
        return [v for v in values if isinstance(v, Dim) and depends(v, self.dim)]

    def refuse(self, reason: str) -> RefusedError:
        """Return the refusal of this op."""
        return op_refusal(self.op, reason)
