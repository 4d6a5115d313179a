"""What each rank's tensors are of the whole step's, when every rank runs it on a part of the batch.

A tensor is ``same`` on all ranks, a ``split`` of the whole along the axis of the batch, or a
``part`` of a sum over ranks. Gradients by a mean loss come out larger on a rank than they are of
the whole, since it divides by its own batch: ``factor`` says how many times, in powers of the
number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from irgraph.ir.dim import Dim
from irgraph.ir.op import Op, Value, tensors_in
from irgraph.ir.tensor import Tensor
from irgraph.verbs.refusal import RefusedError, op_refusal


class BatchPlacement(Struct, frozen=True):
    """How one rank's tensor follows from the whole: ``same``, ``split`` or ``part``.

    Attributes:
        kind: as the module says; ``zero`` is ``same`` and ``part`` at once.
        factor: it is larger than that by the number of ranks to this power.
    """

    kind: str
    factor: int = 0


SAME, SPLIT, ZERO = BatchPlacement("same"), BatchPlacement("split"), BatchPlacement("zero")


class PartialSumError(Exception):
    """An op needs whole values of what ranks hold parts of a sum of."""


def batch_axis(tensor: Tensor, dim: str) -> int | None:
    """Return the axis along which a tensor is split, ``None`` if none depends on the batch.

    Raises ``RefusedError`` where several do, or one is no multiple of the batch.
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
    """Return whether a size follows from a dimension."""
    return isinstance(size, Dim) and any(dim in names for names, _ in size.terms)


class BatchCall(Struct, frozen=True):
    """An op, what its operands are, and along which axis each of its tensors is split."""

    op: Op
    placements: Mapping[str, BatchPlacement]
    dim: str

    def placement_of(self, tensor: Tensor) -> BatchPlacement:
        """Return what an operand is."""
        return self.placements[tensor.name]

    def axis(self, tensor: Tensor) -> int | None:
        """Return the axis of the batch, if a tensor has one."""
        return batch_axis(tensor, self.dim)

    def placements_of(self, values: Sequence[Value] | None = None) -> list[BatchPlacement]:
        """Return what the tensors among values are (default: all operands)."""
        tensors = self.op.inputs if values is None else tensors_in(values)
        return [self.placement_of(tensor) for tensor in tensors]

    def option(self, name: str, position: int, default: Value = None) -> Value:
        """Return an argument by its name, or by its place among the operands."""
        operands = self.op.operands
        return self.op.attributes.get(
            name, operands[position] if position < len(operands) else default
        )

    @property
    def counts(self) -> list[Dim]:
        """The numbers among arguments that follow the size of the batch."""
        values = (*self.op.operands, *self.op.attributes.values())
        return [v for v in values if isinstance(v, Dim) and depends(v, self.dim)]

    def refuse(self, reason: str) -> RefusedError:
        """Return the refusal of this op."""
        return op_refusal(self.op, reason)
