"""Writer of the collectives that convert a rank's tensors from one place to another."""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf

from msgspec.structs import replace

from irgraph.ir.graph import Graph
from irgraph.ir.op import Value
from irgraph.ir.tensor import Tensor, canonical_strides
from irgraph.verbs.sharding.shares import Shares
from irgraph.verbs.sharding.writer import GROUP, Writer, row_major_of


class Collectives(Writer):
    """A writer of conversions of one rank.

    Collectives join and cut blocks along the first axis. A tensor whose blocks follow each other
    in memory, such as the transposed weight of a layer, is viewed so and not copied. In all others
    the ranks are an axis in front: the axes behind it can be split over other ranks of a mesh.
    """

    def __init__(self, graph: Graph, shares: Shares, rank: int, group: str = GROUP) -> None:
        """Start an empty list of ops of a rank."""
        super().__init__(graph, graph.device, group)
        self.sizes = shares.algebra
        self.ranks, self.rank = shares.ranks, rank

    def block(self, tensor: Tensor, axis: int) -> Tensor:
        """Return the rank's block of a complete tensor, a view."""
        size = self._block_size(tensor, axis)
        return self.cut(tensor, axis, self.sizes.times(self.rank, size), size)

    def _block_size(self, tensor: Tensor, axis: int) -> int:
        size = self.sizes.divide(tensor.shape[axis], self.ranks)
        assert size is not None
        return size

    def term(self, tensor: Tensor) -> Tensor:
        """Return the rank's term of a sum that is a complete tensor: zeros except on rank 0."""
        return tensor if self.rank == 0 else self.zeros_like(tensor)

    def norm(self, part: Tensor, power: float) -> Tensor:
        """Return the norm of all ranks' blocks, of the norms of each rank's."""
        if isinf(power):
            largest = self.fresh("largest", part.dtype, part.shape)
            group: dict[str, Value] = {"reduce_op": "max", "group_name": self.group}
            return self.wait(self.call("_c10d_functional.all_reduce", [part], largest, **group))
        total = self.power(part, power)
        self.all_reduce([total], "sum")
        return self.power(total, 1 / power)

    def gathered(self, local: Tensor, axis: int) -> Tensor:
        """Return the complete tensor of which each rank has a block along an axis."""
        order = memory_order(local, axis)
        if order:
            blocks = self.all_gather(self.permute(local, order), self.ranks)
            return self.permute(blocks, inverse(order))
        source = self.view(self.contiguous(local), 1, *local.shape)
        return self._joined_along(self.all_gather(source, self.ranks), axis)

    def scattered(self, terms: Tensor, axis: int, factor: int) -> Tensor:
        """Return the rank's block of a sum over ranks."""
        reduction = "avg" if factor else "sum"
        rows = self._block_size(terms, axis)
        order = memory_order(terms, axis)
        if order:
            source = self.permute(terms, order)
            return self.permute(
                self.reduce_scatter(source, self.ranks, rows, reduction), inverse(order)
            )
        source = self._blocks_in_front(terms, axis)
        block = self.reduce_scatter(source, self.ranks, 1, reduction)
        return self.view(block, *block.shape[1:])

    def exchanged(self, local: Tensor, axis: int, target: int) -> Tensor:
        """Return the rank's block along another axis, from blocks along an axis."""
        source = self._blocks_in_front(local, target)
        ones = [1] * self.ranks
        return self._joined_along(self.exchange(source, ones, ones), axis)

    def unmerged(self, tensor: Tensor, axis: int, *outer: int) -> Tensor:
        """Return a view whose axis is split into axes of some sizes, and one for the rest."""
        inner = self.sizes.divide(tensor.shape[axis], self.sizes.times(1, *outer))
        assert inner is not None
        sizes = (*outer, inner)
        steps = tensor.strides or row_major_of(self.sizes, tensor.shape)
        own_steps = row_major_of(self.sizes, sizes)
        shape = (*tensor.shape[:axis], *sizes, *tensor.shape[axis + 1 :])
        strides = (
            *steps[:axis],
            *(self.sizes.times(step, steps[axis]) for step in own_steps),
            *steps[axis + 1 :],
        )
        name = self.fresh("view", tensor.dtype, ()).name
        view = replace(tensor, name=name, shape=shape, strides=canonical_strides(shape, strides))
        return self.call("aten.view", [tensor], view, size=shape)

    def merged(self, tensor: Tensor, axis: int, count: int) -> Tensor:
        """Return a contiguous tensor in which an axis and those behind it are one."""
        end = axis + count
        size = self.sizes.times(1, *tensor.shape[axis:end])
        shape = (*tensor.shape[:axis], size, *tensor.shape[end:])
        return self.view(self.contiguous(tensor), *shape)

    def _blocks_in_front(self, tensor: Tensor, axis: int) -> Tensor:
        """Return the blocks of a tensor along an axis, with the ranks as an axis in front."""
        blocks = self.unmerged(tensor, axis, self.ranks)
        others = (i for i in range(blocks.rank) if i != axis)
        return self.contiguous(self.permute(blocks, (axis, *others)))

    def _joined_along(self, blocks: Tensor, axis: int) -> Tensor:
        """Return blocks, with the ranks as an axis in front, concatenated along an axis of each."""
        order = list(range(1, blocks.rank))
        order.insert(axis, 0)
        return self.merged(self.permute(blocks, order), axis, 2)


def memory_order(tensor: Tensor, axis: int) -> Sequence[int]:
    """Return the order of axes in which a tensor is contiguous; empty if an axis is not the first.

    The axis is then the one with the largest steps, and the memory has no gaps.
    """
    if tensor.contiguous:
        before = tensor.shape[:axis]
        return (axis, *(i for i in range(tensor.rank) if i != axis)) if _all_one(before) else ()
    steps = tensor.strides
    if steps is None or not tensor.dense:
        return ()
    others = [i for i in range(tensor.rank) if i != axis]
    order = (axis, *sorted(others, key=lambda i: -steps[i]))
    expected = 1
    for i in reversed(order):
        if tensor.shape[i] != 1 and steps[i] != expected:
            return ()
        expected *= tensor.shape[i]
    return order


def _all_one(shape: Sequence[int]) -> bool:
    return all(size == 1 for size in shape)


def inverse(order: Sequence[int]) -> Sequence[int]:
    """Return the order that undoes a permutation."""
    return sorted(range(len(order)), key=order.__getitem__)
