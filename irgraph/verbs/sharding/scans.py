"""Sums of prefixes along an axis of which each rank has a block.

A rank adds the sums of the blocks before its own, which are all that ranks exchange.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.ops.book import names_with
from irgraph.ops.call import Call
from irgraph.ops.operator import Trait
from irgraph.ops.places import ONCE
from irgraph.verbs.sharding.choices.choice import Choice
from irgraph.verbs.sharding.local_tensors import LocalTensors


class Scans:
    """Ways to run sums of prefixes on a rank's block of their axis."""

    def __init__(self, tensors: LocalTensors) -> None:
        self.tensors, self.write = tensors, tensors.write
        self.names = names_with(Trait.SCAN)

    def choice(self, op: Op) -> Choice | None:
        """Return the way to run a scan along a split axis, ``None`` for all other ops."""
        if op.name not in self.names:
            return None
        (operand,), (result,) = op.inputs, op.outputs
        place = self.tensors.places[operand.name]
        if (place.kind, place.axis, place.outer) != ("split", _axis(op), ONCE):
            return None
        return Choice({operand.name: place}, {result.name: place}, writer=self._write)

    def _write(self, op: Op, local: Mapping[str, Tensor]) -> Op:
        """Write the scan of a rank's block; return the call that adds the earlier blocks."""
        write, ranks, axis = self.write, self.tensors.shares.ranks, _axis(op)
        (operand,), (result,) = op.inputs, op.outputs
        block = local[operand.name]
        attributes = {name: value for name, value in op.attributes.items() if name != "dim"}
        of_block = write.fresh("scan", result.dtype, block.shape)
        of_block = write.call("aten.cumsum", [block, axis], of_block, **attributes)
        last = write.cut(of_block, axis, write.sizes.plus(block.shape[axis], -1), 1)
        order = (axis, *(i for i in range(block.rank) if i != axis))
        sums = write.all_gather(write.contiguous(write.permute(last, order)), ranks)
        earlier = write.cut(sums, 0, 0, self.tensors.rank)
        before = write.fresh("before", result.dtype, [1, *sums.shape[1:]])
        before = write.call("aten.sum", [earlier], before, dim=(0,), keepdim=True)
        back = tuple(order.index(i) for i in range(block.rank))
        shape = self.tensors.shares.split_shape(result, axis)
        total = replace(result, shape=shape, strides=None)
        return Op("aten.add", (of_block, write.permute(before, back)), (total,))


def _axis(op: Op) -> int:
    """Return the axis of a scan."""
    return Call(op).axis("dim", op.inputs[0].rank)
