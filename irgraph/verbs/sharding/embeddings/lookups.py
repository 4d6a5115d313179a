"""Lookups of bags on ranks that share the batch: each rank has its own bags, from 0 on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from irgraph.ir.effects import is_view
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.ops.book import names_with
from irgraph.ops.operator import Trait
from irgraph.ops.places import SAME, Place, split
from irgraph.verbs.refusal import op_refusal
from irgraph.verbs.sharding.choices.candidates import changed_tensors
from irgraph.verbs.sharding.choices.choice import Choice
from irgraph.verbs.sharding.embeddings.tables import EmbeddingTable
from irgraph.verbs.sharding.local_tensors import LocalTensors
from irgraph.verbs.sharding.shares import Shares


@dataclass
class Lookups:
    """The lookups of a step's tables.

    Attributes:
        tables: all tables.
        starts: calls that count the first index of every bag, for lookups only.
        exchanged: names of the tables whose rows ranks share: an exchange replaces their lookups
            afterwards, and treats all their tensors.
        gradients: the place of the gradient of each table's bags, by the table's name.
    """

    tables: Sequence[EmbeddingTable] = ()
    exchanged: frozenset[str] = frozenset()
    starts: frozenset[Op] = frozenset()
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
        if op in self.starts:
            return Choice({}, {t.name: split(0) for t in op.outputs}, has_rank_sizes=True)
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


def bag_starts(graph: Graph, tables: Sequence[EmbeddingTable]) -> frozenset[Op]:
    """Return the calls of ``arange`` whose numbers only lookups read, as the starts of bags.

    All other offsets must be inputs, of which each rank has its own. Raises ``RefusedError`` for
    those that are computed for the bags of all ranks.
    """
    lookups = {op for table in tables for op in (table.forward, table.backward)}
    definers = {tensor.name: op for op in graph.leaves() for tensor in op.outputs}
    starts: set[Op] = set()
    copies = names_with(Trait.DUPLICATE)
    for table in tables:
        definer = definers.get(table.offsets.name)
        while definer is not None and (is_view(definer) or definer.name in copies):
            definer = definers.get(definer.inputs[0].name)
        if definer is None:
            continue
        buffer = table.offsets.buffer
        if definer.name != "aten.arange" or any(
            leaf is not definer and leaf not in lookups for _, leaf in graph.touching[buffer]
        ):
            message = f"reads %{table.offsets.name}, which is computed for the bags of all ranks"
            raise op_refusal(table.forward, f"{message}: a rank's bags begin at 0")
        starts.add(definer)
    return frozenset(starts)


def _own_part(tensor: Tensor, shares: Shares, factor: int = 0) -> Place:
    """Return the place of a tensor that is split along the axis of the batch, if it has one."""
    for axis, size in enumerate(tensor.shape):
        if shares.depends(size):
            return Place("split", axis, factor)
    return SAME if not factor else Place("same", factor=factor)
