"""Layouts of tensors whose sizes are expressions: of views, and of new tensors without gaps."""

from __future__ import annotations

from collections.abc import Sequence

from irgraph.axes.algebra import Algebra
from irgraph.axes.relations import ConstrainedOp
from irgraph.ir.op import Op
from irgraph.ir.schema import schemas_of
from irgraph.ir.tensor import Tensor
from irgraph.ops.book import meaning_of, names_with
from irgraph.ops.operator import Trait
from irgraph.ops.strides import Layout, View


def is_slice(op: Op) -> bool:
    """Return whether an op slices an axis."""
    return op.name in names_with(Trait.SLICE)


def end_argument(op: Op) -> str:
    """Return the name of the argument that specifies the end of a slice."""
    names = {argument.name for argument in schemas_of(op.name)[0].arguments}
    return "length" if "length" in names else "end"


def is_known_view(site: ConstrainedOp) -> bool:
    """Return whether the results of an op are views of its operand, with layouts that follow."""
    if not (site.inputs and site.outputs) or site.outputs[0].buffer != site.inputs[0].buffer:
        return False
    meaning = meaning_of(site.op)
    return meaning is not None and bool(meaning.results)


def view_layouts(
    site: ConstrainedOp,
    operand: Layout,
    shapes: Sequence[tuple[int, ...]],
    start: int | None,
    algebra: Algebra,
) -> list[Layout]:
    """Return the layouts of the results of a known view; ``start`` overrides a slice's."""
    meaning = meaning_of(site.op)
    assert meaning is not None
    return View(meaning, operand, algebra, start).layouts(shapes, site.inputs[0].itemsize)


def dense_strides(tensor: Tensor, shape: Sequence[int], algebra: Algebra) -> list[int] | None:
    """Return the strides of a gapless tensor with its axes in the same order; ``None``: has gaps.

    ``shape`` is the new one; the order of axes in memory is the tensor's.
    """
    order = list(range(tensor.rank))
    if tensor.strides is not None and not any(tensor.strides):
        return [0] * tensor.rank  # sparse, or one element for all
    if tensor.strides is not None:
        # strides of axes of size 1 are arbitrary: such axes keep their position among the others
        order.sort(key=lambda i: (-tensor.strides[i], i))  # type: ignore[index]
        if not _is_gapless(tensor, order):
            return None
    strides = [1] * tensor.rank
    step = 1
    for i in reversed(order):
        strides[i] = step
        step = algebra.times(step, shape[i])
    return strides


def _is_gapless(tensor: Tensor, order: Sequence[int]) -> bool:
    step = 1
    for i in reversed(order):
        if tensor.shape[i] != 1 and tensor.strides is not None:
            if tensor.strides[i] != step:
                return False
            step *= tensor.shape[i]
    return True
