"""The embedding tables of a step: their lookups, and the other tensors with their rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.effects import written_by
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Result, Value, tensors_in
from irgraph.ir.schema import arguments_of
from irgraph.ir.tensor import Tensor
from irgraph.ops.book import names_with
from irgraph.ops.live_out import is_label
from irgraph.ops.operator import Trait
from irgraph.plans.plan import Sizes
from irgraph.verbs.insert import outermost_call
from irgraph.verbs.refusal import op_refusal
from irgraph.verbs.sharding.choices.candidates import positions
from irgraph.verbs.sharding.families import companions

Arguments = Mapping[str, Value]


class EmbeddingTable(Struct, frozen=True):
    """One embedding table.

    Attributes:
        name: its label, or its tensor's name.
        weight: the rows.
        forward, outer: the leaf that looks it up, and the outermost call of this leaf.
        backward: the leaf that computes its gradient, ``None`` in inference.
        arguments: arguments of the lookup by the schema's names.
        tensor_names: names of all tensors that have its rows and columns.
    """

    name: str
    weight: Tensor
    forward: Op
    outer: Op
    backward: Op | None
    arguments: Arguments
    tensor_names: frozenset[str] = frozenset()

    @property
    def out(self) -> Tensor:
        """Result of the lookup, with a row for each bag."""
        return self.forward.outputs[0]

    @property
    def indices(self) -> Tensor:
        """Indices of the rows that are looked up."""
        return self._tensor("indices")

    @property
    def offsets(self) -> Tensor:
        """Start of each bag among the indices."""
        return self._tensor("offsets")

    def _tensor(self, name: str) -> Tensor:
        value = self.arguments[name]
        assert isinstance(value, Tensor)
        return value

    @property
    def gradient(self) -> Tensor | None:
        """The gradient of ``out``."""
        return None if self.backward is None else self.backward.inputs[0]


def table_sizes(graph: Graph) -> Sizes:
    """Return rows and columns of every table with lookups of bags, by name."""
    return {
        name: (int(weight.shape[0]), int(weight.shape[1])) for name, weight, _ in lookups(graph)
    }


def lookups(graph: Graph) -> Iterator[tuple[str, Tensor, Op]]:
    """Yield the name, the rows and the op of every lookup of bags."""
    labels = {d.tensor.buffer: d.label or d.tensor.name for d in graph.tensors}
    bags = names_with(Trait.BAGS)
    for op in graph.leaves():
        if op.name in bags and op.inputs and op.inputs[0].rank == 2:
            weight = op.inputs[0]
            yield labels.get(weight.buffer, weight.name), weight, op


def tables_of(graph: Graph) -> list[EmbeddingTable]:
    """Return the tables in the order of their lookups.

    Raises ``RefusedError`` if one is looked up twice, or if a lookup cannot be sharded.
    """
    for op in graph.leaves():
        if op.name in names_with(Trait.BATCHED_BAGS):
            raise op_refusal(op, "is fused already: shard the model first")
    table_by_name: dict[str, EmbeddingTable] = {}
    gradients = names_with(Trait.BAGS_GRADIENT)
    makers = {leaf.inputs[3].name: leaf for leaf in graph.leaves() if leaf.name in gradients}
    for name, weight, op in lookups(graph):
        if name in table_by_name:
            raise op_refusal(op, f"looks up table {name!r} a second time")
        arguments = arguments_of(op, graph.schemas)
        _check_lookup(op, weight, arguments, graph)
        marks = {tensor.name for tensor in op.outputs[1:]}
        backward = next((leaf for mark, leaf in makers.items() if mark in marks), None)
        outer = outermost_call(graph, op)
        table_by_name[name] = EmbeddingTable(name, weight, op, outer, backward, arguments)
    names_by_table = _TableTensors(graph, list(table_by_name.values())).find()
    return [
        replace(table, tensor_names=frozenset(names))
        for table, names in zip(table_by_name.values(), names_by_table, strict=True)
    ]


def _check_lookup(op: Op, weight: Tensor, arguments: Arguments, graph: Graph) -> None:
    """Refuse lookups with unsupported arguments."""
    indices, offsets = arguments.get("indices"), arguments.get("offsets")
    if not isinstance(indices, Tensor) or not isinstance(offsets, Tensor) or indices.rank != 1:
        raise op_refusal(op, "does not look up bags by indices and offsets")
    if arguments.get("include_last_offset"):
        raise op_refusal(op, "takes offsets that end with the total, which cannot be exchanged")
    if isinstance(arguments.get("per_sample_weights"), Tensor):
        raise op_refusal(op, "takes per-index weights, which cannot be exchanged")
    if arguments.get("sparse"):
        raise op_refusal(op, "has a sparse gradient, which cannot be exchanged")
    if arguments.get("padding_idx") not in (None, -1):
        raise op_refusal(op, "leaves out a padding row, which some ranks would not know")
    if weight.buffer not in graph.lasting or not weight.contiguous:
        raise op_refusal(op, f"looks up %{weight.name}, which is no parameter that can be split")


class _TableTensors:
    """Search for each table's tensors: its gradient, its optimizer's state, views of these."""

    def __init__(self, graph: Graph, tables: Sequence[EmbeddingTable]) -> None:
        self.graph = graph
        self.tables = tables
        self.table_by_tensor: dict[str, int] = {}
        for number, table in enumerate(tables):
            self.table_by_tensor[table.weight.name] = number
            if table.backward is not None:
                self.table_by_tensor.update(
                    (tensor.name, number) for tensor in table.backward.outputs
                )

    def find(self) -> list[set[str]]:
        """Return the names of each table's tensors."""
        lookups = {op for t in self.tables for op in (t.forward, t.backward) if op is not None}
        leaves = [op for op in self.graph.leaves() if op not in lookups and not is_label(op)]
        count = -1
        while count != len(self.table_by_tensor):
            count = len(self.table_by_tensor)
            for op in leaves:
                if any(tensor.name in self.table_by_tensor for tensor in (*op.inputs, *op.outputs)):
                    self._follow(op)
        return [
            {name for name, n in self.table_by_tensor.items() if n == number}
            for number in range(len(self.tables))
        ]

    def _follow(self, op: Op) -> None:
        """Add tensors that an op pairs with a table's tensors to the table."""
        for call in positions(op):
            members = [t for t in (*call.inputs, *call.outputs) if t.name in self.table_by_tensor]
            owners = {self.table_by_tensor[tensor.name] for tensor in members}
            if any(companions(call, t, axis) is None for t in members for axis in range(t.rank)):
                raise op_refusal(op, "has no rule that keeps a table's rows separate")
            if len(owners) > 1:
                raise op_refusal(op, "pairs two tables")
            for number in owners:
                self._claim(op, (*call.inputs, *call.outputs), number)

    def _claim(self, op: Op, row: Sequence[Tensor], number: int) -> None:
        table = self.tables[number]
        written = {tensor.name for tensor in written_by(op)}
        for tensor in row:
            if tensor.shape == table.weight.shape and tensor.contiguous and not tensor.offset:
                self.table_by_tensor[tensor.name] = number
            elif tensor.numel > 1 or tensor.name in written:
                raise op_refusal(op, f"pairs {table.name!r} with %{tensor.name} of another form")


def without_tensors(op: Op, names: Set[str]) -> Op | None:
    """Return an op without the positions of these tensors; ``None`` if no other one remains."""
    calls = positions(op)
    count = len(calls)
    remaining = [
        index
        for index, call in enumerate(calls)
        if names.isdisjoint(tensor.name for tensor in (*call.inputs, *call.outputs))
    ]
    if len(remaining) == count:
        return op
    if not remaining or count == 1:
        return None

    def select(value: Value) -> Value:
        listed = isinstance(value, tuple) and len(value) == count
        return tuple(value[i] for i in remaining) if listed else value  # type: ignore[index]

    results: tuple[Result, ...] = tuple(map(select, op.results))  # type: ignore[arg-type]
    operands = tuple(map(select, op.operands))
    attributes = {name: select(value) for name, value in op.attributes.items()}
    written = op.written & {tensor.name for tensor in tensors_in(operands)}
    return replace(op, operands=operands, results=results, attributes=attributes, written=written)
