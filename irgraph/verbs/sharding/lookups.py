"""Lookups of bags on ranks that share the batch: each rank has its own bags, from 0 on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.ops.places import SAME, Place
from irgraph.verbs.refusal import op_refusal
from irgraph.verbs.sharding.candidates import changed_tensors
from irgraph.verbs.sharding.choice import Choice
from irgraph.verbs.sharding.local_tensors import LocalTensors
from irgraph.verbs.sharding.shares import Shares
from irgraph.verbs.sharding.tables import EmbeddingTable


@dataclass
class Lookups:
    """The lookups of a step's tables.

    Attributes:
        tables: all tables.
        exchanged: names of the tables whose rows ranks share: an exchange replaces their lookups
            afterwards, and treats all their tensors.
        gradients: the place of the gradient of each table's bags, by the table's name.
    """

    tables: Sequence[EmbeddingTable] = ()
    exchanged: frozenset[str] = frozenset()
    gradients: dict[str, Place] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._forward = {table.forward: table for table in self.tables}
        self._backward = {t.backward: t for t in self.tables if t.backward is not None}
        self._table_tensors = frozenset(
            name
            for table in self.tables
            if table.name in self.exchanged
            for name in table.tensor_names
        )

    def choice(self, op: Op, tensors: LocalTensors, shares: Shares) -> Choice | None:
        """Return the way to run an op of a table, ``None`` for other ops."""
        if op in self._forward:
            operands = {t.name: _own_part(t, shares) for t in op.inputs}
            return Choice(operands, {t.name: _own_part(t, shares) for t in op.outputs})
        if op in self._backward:
            return self._gradient(op, self._backward[op], tensors, shares)
        used = [tensor.name for tensor in (*op.inputs, *op.outputs)]
        if self._table_tensors.isdisjoint(used):
            return None
        places = {tensor.name: tensors.places[tensor.name] for tensor in op.inputs}
        return Choice(places, {tensor.name: SAME for tensor in changed_tensors(op)})

    def _gradient(
        self, op: Op, table: EmbeddingTable, tensors: LocalTensors, shares: Shares
    ) -> Choice:
        """Return the way to compute the gradient of a table: a term of a sum over samples."""
        gradient, *others = op.inputs
        if table.arguments.get("scale_grad_by_freq"):
            raise op_refusal(op, "counts how often samples of all ranks name a row")
        factor = tensors.places[gradient.name].factor
        place = _own_part(gradient, shares, factor)
        self.gradients[table.name] = place
        operands = {t.name: _own_part(t, shares) for t in others} | {gradient.name: place}
        is_term = table.name not in self.exchanged
        result = Place("partial", factor=factor) if is_term else SAME
        return Choice(operands, dict.fromkeys((t.name for t in op.outputs), result))


def _own_part(tensor: Tensor, shares: Shares, factor: int = 0) -> Place:
    """Return the place of a tensor that is split along the axis of the batch, if it has one."""
    for axis, size in enumerate(tensor.shape):
        if shares.depends(size):
            return Place("split", axis, factor)
    return SAME if not factor else Place("same", factor=factor)
