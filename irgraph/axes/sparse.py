"""Sparse tensors: their number of elements follows from the op that made them, not their shape."""

from __future__ import annotations

from irgraph.axes.def_use import DefUse
from irgraph.axes.relations import AxisOf, ConstrainedOp, Relation, axes, axis, paired
from irgraph.ir.tensor import Tensor

PARTS = ("aten._indices", "aten._values", "aten.indices", "aten.values")
"""Ops that return the indices, or the values, of a sparse tensor."""

MAKERS = ("aten._sparse_coo_tensor_unsafe", "aten.sparse_coo_tensor")
"""Ops that make a sparse tensor from indices and values."""


def is_sparse(site: ConstrainedOp) -> bool:
    """Return whether an op takes a sparse tensor apart or makes one."""
    return site.op.name in PARTS or site.op.name in MAKERS


def sparse_relation(site: ConstrainedOp, uses: DefUse) -> Relation | None:
    """Return the size constraints of an op on sparse tensors; ``None`` for any other."""
    if not (site.inputs and site.outputs):
        return None
    if site.op.name in MAKERS:
        return _made(site, uses)
    if site.op.name not in PARTS:
        return None
    whole, part = site.inputs[0], site.outputs[0]
    found = Relation(free={axis(whole, i) for i in range(whole.rank)})
    is_values = site.op.name.endswith("values")
    elements = axis(part, 0 if is_values else 1)
    count = _elements(whole, uses)
    if count is not None and uses.tensors[count[0]].shape[count[1]] == _size(part, elements):
        uses.add(count[0], site)
        found.equal.append((elements, count))
    if is_values:
        found.equal += [(axis(whole, -i), axis(part, -i)) for i in range(1, part.rank)]
    return found


def _size(tensor: Tensor, spot: AxisOf) -> int:
    return tensor.shape[spot[1]]


def _elements(whole: Tensor, uses: DefUse) -> AxisOf | None:
    """Return an axis that has as many elements as a sparse tensor."""
    producer = uses.producer(whole)
    if producer is None:
        return None
    if producer.op.name in MAKERS:
        return axis(producer.inputs[1], 0)
    if producer.op.name.startswith("aten._embedding_bag"):
        return axis(producer.inputs[1], 0)
    return None


def _made(site: ConstrainedOp, uses: DefUse) -> Relation:
    places, values = site.inputs[:2]
    whole = site.outputs[0]
    found = Relation(equal=[(axis(places, 1), axis(values, 0))])
    found.equal += [(axis(whole, -i), axis(values, -i)) for i in range(1, values.rank)]
    sizes = site.sizes("size")
    found.equal += [(axis(whole, i), site.argument("size", i)) for i in range(len(sizes))]
    parted = uses.producer(values)
    source = parted.inputs[0] if parted and parted.op.name in PARTS else None
    if source is not None and source.shape == whole.shape:
        uses.add(source.name, site)
        found.equal += paired(axes(source), axes(whole))
    return found
