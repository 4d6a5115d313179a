"""Sparse tensors: their number of elements follows from their producer, not from their shape."""

from __future__ import annotations

from irgraph.axes.def_use import DefUse
from irgraph.axes.relations import AxisOf, ConstrainedOp, Relation, axes, axis, axis_pairs
from irgraph.ir.tensor import Tensor
from irgraph.ops.book import names_with
from irgraph.ops.operator import Trait


def is_sparse(site: ConstrainedOp) -> bool:
    """Return whether an op splits a sparse tensor into its parts or makes one."""
    return _has_trait(site, Trait.SPARSE_PART, Trait.SPARSE_MAKER)


def _has_trait(site: ConstrainedOp, *traits: Trait) -> bool:
    return site.op.name in names_with(*traits)


def sparse_relation(site: ConstrainedOp, uses: DefUse) -> Relation | None:
    """Return the size constraints of an op on sparse tensors; ``None`` for any other."""
    if not (site.inputs and site.outputs):
        return None
    if _has_trait(site, Trait.SPARSE_MAKER):
        return _construction(site, uses)
    if not _has_trait(site, Trait.SPARSE_PART):
        return None
    sparse, part = site.inputs[0], site.outputs[0]
    relation = Relation(free={axis(sparse, i) for i in range(sparse.rank)})
    is_values = site.op.name.endswith("values")
    elements = axis(part, 0 if is_values else 1)
    count = _elements(sparse, uses)
    if count is not None and uses.tensors[count[0]].shape[count[1]] == _size(part, elements):
        uses.add_user(count[0], site)
        relation.equal.append((elements, count))
    if is_values:
        relation.equal += [(axis(sparse, -i), axis(part, -i)) for i in range(1, part.rank)]
    return relation


def _size(tensor: Tensor, key: AxisOf) -> int:
    return tensor.shape[key[1]]


def _elements(sparse: Tensor, uses: DefUse) -> AxisOf | None:
    """Return an axis that has as many elements as a sparse tensor."""
    producer = uses.producer(sparse)
    if producer is None:
        return None
    if _has_trait(producer, Trait.SPARSE_MAKER):
        return axis(producer.inputs[1], 0)
    if producer.op.name.startswith("aten._embedding_bag"):
        return axis(producer.inputs[1], 0)
    return None


def _construction(site: ConstrainedOp, uses: DefUse) -> Relation:
    indices, values = site.inputs[:2]
    sparse = site.outputs[0]
    relation = Relation(equal=[(axis(indices, 1), axis(values, 0))])
    relation.equal += [(axis(sparse, -i), axis(values, -i)) for i in range(1, values.rank)]
    sizes = site.sizes("size")
    relation.equal += [(axis(sparse, i), site.argument("size", i)) for i in range(len(sizes))]
    producer = uses.producer(values)
    if producer is None or not _has_trait(producer, Trait.SPARSE_PART):
        return relation
    source = producer.inputs[0]
    if source.shape == sparse.shape:
        uses.add_user(source.name, site)
        relation.equal += axis_pairs(axes(source), axes(sparse))
    return relation
