"""Exchange of the lookups of sharded tables, in the model of a rank with its own samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from msgspec.structs import replace

from irgraph.ir.edit import Edit, map_tensors, map_value, without_times
from irgraph.ir.graph import Declared, Graph
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor
from irgraph.ops.live_out import is_label
from irgraph.plans.plan import Plan, TableShard
from irgraph.verbs.insert import outermost_call
from irgraph.verbs.refusal import op_refusal
from irgraph.verbs.sharding.call_properties import in_context
from irgraph.verbs.sharding.embeddings.exchange import Exchange
from irgraph.verbs.sharding.embeddings.gradients import Gradients
from irgraph.verbs.sharding.embeddings.tables import EmbeddingTable, without_tensors
from irgraph.verbs.sharding.writer import GROUP, Writer


class TableExchange:
    """Replacement of a rank's lookups and their gradients.

    Attributes:
        parts: this rank's part of each tensor of a table, by name; ``None`` if it has none.
        new_op_count: number of new ops.
    """

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        rank: int,
        tables: Sequence[EmbeddingTable],
        factors: Mapping[str, int],
        group: str = GROUP,
    ) -> None:
        """Start a replacement.

        Args:
            graph: a rank's model, whose tables are complete and whose samples are the rank's.
            plan: the plan with the tables' schemes.
            rank: index of the rank.
            tables: the sharded tables of the rank's model.
            factors: powers of the number of ranks by which gradients of bags are too large, by
                the table's name.
            group: the process group of the ranks.
        """
        self.graph, self.plan, self.rank = graph, plan, rank
        self.tables, self.factors = tables, factors
        self.edit = Edit(graph)
        device = tables[0].weight.device
        self.forward, self.backward = (Writer(graph, device, group) for _ in range(2))
        self.backward.used_names = self.forward.used_names
        self.parts: dict[str, TableShard | None] = {}
        self.new_op_count = 0

    def build_graph(self) -> Graph:
        """Return the rank's model with exchanges.

        Raises ``RefusedError`` if an op reads bags or makes their gradients too late.
        """
        first = self.tables[0]
        sample = first.out.shape[0]
        factors = set(self.factors.values())
        if len(factors) > 1:
            raise op_refusal(first.forward, "and other lookups have gradients by different losses")
        exchange = Exchange(self.tables, self.plan, self.rank, sample, self.forward)
        for table in self.tables:
            part = exchange.part(table)
            self.parts.update(dict.fromkeys(table.tensor_names, part))
        last = self._last_lookup()
        exchange.look_up(self._finish)
        self._insert_ops(self.forward, last, after=True)
        for table in self.tables:
            self.edit.remove(table.outer)
        self._remove_absent(exchange)
        if all(table.backward is not None for table in self.tables):
            self._send_back(exchange, next(iter(factors), 0))
        elif any(table.backward is not None for table in self.tables):
            raise op_refusal(first.forward, "has a gradient or none, and others do not")
        return self._with_local_shapes(self.edit.commit())

    def _last_lookup(self) -> Op:
        """Return the outer op of the last lookup; refuse ops that read bags before it."""
        position_by_id = self.graph.places
        last = max(self.tables, key=lambda table: position_by_id[table.forward])
        for table in self.tables:
            if table.out.shape[0] is not self.tables[0].out.shape[0] and str(
                table.out.shape[0]
            ) != str(self.tables[0].out.shape[0]):
                raise op_refusal(
                    table.forward, "makes another number of bags than the first lookup"
                )
            marks = {t.buffer for t in table.forward.outputs[1:]}
            for _, leaf in chain.from_iterable(self.graph.touching[buffer] for buffer in marks):
                if leaf not in (table.forward, table.backward):
                    raise op_refusal(leaf, "reads what a lookup keeps for its gradient")
            for position, leaf in self.graph.touching[table.out.buffer]:
                if leaf is not table.forward and position < position_by_id[last.forward]:
                    raise op_refusal(
                        leaf, "reads bags before the last lookup: move lookups together"
                    )
        return last.outer

    def _finish(self, table: EmbeddingTable, bags: Tensor | None, write: Writer) -> Tensor:
        """Return the tensor of a table's bags: the given view if only ``cat`` reads it."""
        out = table.out
        if bags is None:
            return out
        readers = [leaf for _, leaf in self.graph.touching[out.buffer] if leaf is not table.forward]
        returned = any(tensor.buffer == out.buffer for tensor in self.graph.returned or ())
        if not returned and all(leaf.name == "aten.cat" for leaf in readers):
            self.edit.rename(out, bags)
            return bags
        attributes: dict[str, Value] = {"memory_format": "contiguous_format"}
        return write.call("aten.clone", [bags], out, **attributes)

    def _send_back(self, exchange: Exchange, scaled: int) -> None:
        """Exchange gradients before the first is used; refuse if others are computed later."""
        position_by_id = self.graph.places
        leaves = [table.backward for table in self.tables if table.backward is not None]
        first = min(leaves, key=lambda leaf: position_by_id[leaf])
        for table in self.tables:
            assert table.gradient is not None
            for position, leaf in self.graph.touching[table.gradient.buffer]:
                if table.gradient in leaf.outputs and position > position_by_id[first]:
                    raise op_refusal(leaf, "makes the gradient of bags after another was used")
        gradients = Gradients(exchange, self.backward, scaled)
        gradient_by_table = gradients.send_back()
        self._insert_ops(self.backward, self._node(first), after=False)
        for table in self.tables:
            assert table.backward is not None
            part = exchange.part(table)
            if part is not None:
                backward = gradients.gradient_of(table, part, gradient_by_table[table.name])
                self.edit.insert(backward, before=table.backward)
            self.edit.remove(table.backward)

    def _node(self, leaf: Op) -> Op:
        """Return the autograd node that called a leaf, or else its outermost call."""
        body = self.graph.ops
        for position in self.graph.paths[leaf]:
            outer = body[position]
            if outer.is_autograd:
                return outer
            body = outer.body
        return outermost_call(self.graph, leaf)

    def _insert_ops(self, write: Writer, anchor: Op, *, after: bool) -> None:
        """Insert new ops before or after an op, on its thread and stream and in its phase."""
        outer_ids = {table.outer for table in self.tables}
        for op in write.ops:
            is_lookup = op.name.startswith("aten.embedding") or op in outer_ids
            new_op = op if is_lookup else replace(in_context(op, anchor), module=op.module)
            self.edit.insert(
                new_op, before=None if after else anchor, after=anchor if after else None
            )
        self.new_op_count += len(write.ops)

    def _remove_absent(self, exchange: Exchange) -> None:
        """Remove the ops on tables that this rank does not store."""
        absent = {n for t in self.tables if exchange.part(t) is None for n in t.tensor_names}
        lookups = {op for t in self.tables for op in (t.forward, t.backward)}
        for leaf in self.graph.leaves():
            if leaf in lookups or is_label(leaf):
                continue
            if any(tensor.name in absent for tensor in (*leaf.inputs, *leaf.outputs)):
                remaining = without_tensors(leaf, absent)
                if remaining is not None:
                    self.edit.insert(remaining, before=leaf)
                self.edit.remove(leaf)

    def _with_local_shapes(self, graph: Graph) -> Graph:
        """Return a graph with the local parts' sizes of tables, and without absent tables."""
        shapes = {
            name: (part.rows[1] - part.rows[0], part.columns[1] - part.columns[0])
            for name, part in self.parts.items()
            if part is not None
        }
        table_by_shape = {tuple(map(int, t.weight.shape)): t for t in self.tables}

        def tensor(original: Tensor) -> Tensor:
            shape = shapes.get(original.name)
            return replace(original, shape=shape, strides=None) if shape else original

        def op(original: Op) -> Op:
            names = [t.name for t in (*original.inputs, *original.outputs) if t.name in shapes]
            body = tuple(map(op, original.body))
            if not names and all(a is b for a, b in zip(body, original.body, strict=True)):
                return original
            resized = map_tensors(replace(original, body=()), tensor)
            sizes: dict[str, Value] = {
                name: shapes[names[0]] if value in table_by_shape and names else value
                for name, value in resized.attributes.items()
            }
            return replace(resized, attributes=sizes, body=body, notes=without_times(resized.notes))

        present = [d for d in graph.tensors if self.parts.get(d.tensor.name, True) is not None]
        declared: tuple[Declared, ...] = tuple(replace(d, tensor=tensor(d.tensor)) for d in present)
        returned = map_value(graph.returned, tensor)
        return replace(graph, tensors=declared, ops=tuple(map(op, graph.ops)), returned=returned)
