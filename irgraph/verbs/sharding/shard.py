"""``shard``: rewrites a step to the model of one of several ranks, with its collectives."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.edit import Edit, map_tensors, map_value, without_times
from irgraph.ir.graph import Declared, Graph
from irgraph.ir.live_out import is_label, live_out
from irgraph.ir.op import Op, Value
from irgraph.ir.ranks import GROUPS, RANK, groups_text, is_collective, with_ranks
from irgraph.ir.resize import fixed_numbers, with_dims
from irgraph.ir.tensor import Tensor
from irgraph.plans.layout import BATCH, LAYERS, PARTS, SAMPLES, TensorLayout, layout_text
from irgraph.plans.plan import DATA, SPLIT, Mesh, Plan, TableShard, check_plan
from irgraph.verbs.insert import outermost_call
from irgraph.verbs.refusal import RefusedError, op_refusal
from irgraph.verbs.sharding.batch_placement import batch_axis
from irgraph.verbs.sharding.exchange import Exchange
from irgraph.verbs.sharding.gradients import Gradients
from irgraph.verbs.sharding.layers.split import split_layers
from irgraph.verbs.sharding.losses import with_sums
from irgraph.verbs.sharding.optimizer import merge_layouts, split_optimizer
from irgraph.verbs.sharding.propagation import ShardPropagation, SumBucket
from irgraph.verbs.sharding.tables import EmbeddingTable, table_sizes, tables_of, without_tensors
from irgraph.verbs.sharding.writer import GROUP, Writer

ORIGIN = "shard"


class ShardResult(Struct, frozen=True):
    """The model of one rank.

    Attributes:
        graph: the rank's model.
        new_op_count: number of new ops.
        sum_count: number of tensors that are summed over ranks.
        legal: the reason why each rank's results are its part of the full step's, as a sentence.
        layouts: relations of the rank's tensors to the full step's tensors.
    """

    graph: Graph
    new_op_count: int
    sum_count: int
    legal: str
    layouts: tuple[TensorLayout, ...] = ()


def shard(graph: Graph, plan: Plan, rank: int, dim: str = "") -> ShardResult:
    """Return the model of one rank of a plan: its share of the batch, and its parts of the tables.

    All ranks have equal numbers of samples; ids are exchanged, and bags are returned. Gradients of
    replicated parameters are averaged before an op reads their full values.

    Args:
        graph: the full step, whose batch all ranks share.
        plan: a plan with a scheme for every table.
        rank: index of the rank, from 0.
        dim: the dimension of the batch (default: the only one).

    Raises:
        IrgraphError: the plan does not fit the model (exit code 2).
        RefusedError: an op is not supported, or mixes samples of different ranks.
    """
    check_plan(plan, table_sizes(graph))
    if plan.mesh is not None:
        return _by_mesh(graph, plan, plan.mesh, rank, dim)
    if plan.layers:
        return _by_layers(graph, plan, rank)
    return _by_samples(graph, plan, rank, dim)


def _by_samples(graph: Graph, plan: Plan, rank: int, dim: str, group: str = GROUP) -> ShardResult:
    """Return the model of one rank with its own samples."""
    dim = _dimension(graph, plan, rank, dim)
    local = with_dims(graph, {dim: graph.dims[dim] // plan.ranks})
    local = with_sums(local) if plan.ranks > 1 else local
    tables = tables_of(local)
    sharded = [t for t in tables if plan.tables[t.name].scheme != DATA and plan.ranks > 1]
    if plan.ranks == 1:
        return ShardResult(
            with_ranks(replace(graph, settings=_settings(graph, 0, dim, ())), 1),
            0,
            0,
            "one rank runs the whole step",
        )
    replicated = [table for table in tables if table not in sharded]
    propagation = ShardPropagation(local, dim, sharded, replicated)
    return _RankBuilder(local, plan, rank, dim, sharded, propagation, group).build()


def _by_mesh(graph: Graph, plan: Plan, mesh: Mesh, rank: int, dim: str) -> ShardResult:
    """Return the model of one rank of a mesh: the batch is split first, and then the layers.

    Gradients are averaged over the ranks that have other samples and the same parts of layers.
    """
    if not 0 <= rank < plan.ranks:
        raise RefusedError(f"there is no rank {rank} among {plan.ranks}")
    split_layers(graph, replace(plan, ranks=1, mesh=None), 0)  # names, tables, the optimizer
    row, column = divmod(rank, mesh.tensor)
    by_samples = _by_samples(graph, Plan(mesh.data, tables=plan.tables), row, dim, SAMPLES)
    layer_plan = replace(plan, ranks=mesh.tensor, mesh=None)
    by_layers = _by_layers(by_samples.graph, layer_plan, column, LAYERS)
    groups = {
        SAMPLES: range(column, plan.ranks, mesh.tensor),
        LAYERS: range(row * mesh.tensor, (row + 1) * mesh.tensor),
    }
    layouts = [
        *(replace(layout, over=SAMPLES) for layout in by_samples.layouts),
        *(replace(layout, over=LAYERS) for layout in by_layers.layouts),
    ]
    settings: dict[str, Value] = {
        RANK: rank,
        GROUPS: groups_text(groups),
        PARTS: layout_text(layouts),
    }
    sharded = replace(by_layers.graph, settings={**by_layers.graph.settings, **settings})
    legal = f"over {mesh.data} ranks {by_samples.legal}; over {mesh.tensor} {by_layers.legal}"
    return ShardResult(
        with_ranks(sharded, plan.ranks),
        by_samples.new_op_count + by_layers.new_op_count,
        by_samples.sum_count + by_layers.sum_count,
        legal,
        tuple(layouts),
    )


def _by_layers(graph: Graph, plan: Plan, rank: int, group: str = GROUP) -> ShardResult:
    """Return the model of one rank with parts of linear layers, and all samples."""
    layer_split = split_layers(graph, plan, rank, group)
    sums, gathers = (
        f"{n} {noun}{'s' * (n != 1)}"
        for n, noun in ((layer_split.sums, "sum"), (layer_split.gathers, "gathering"))
    )
    reason = (
        f"every tensor is the same on all ranks, an equal block of the whole step's, or a part of a"
        f" sum: {sums} and {gathers} over ranks before what needs tensors whole"
    )
    return ShardResult(
        layer_split.graph, layer_split.new_op_count, layer_split.sums, reason, layer_split.layouts
    )


def _dimension(graph: Graph, plan: Plan, rank: int, dim: str) -> str:
    """Return the dimension of the batch; refuse one whose size the ranks cannot share."""
    if not 0 <= rank < plan.ranks:
        raise RefusedError(f"there is no rank {rank} among {plan.ranks}")
    if not dim and len(graph.dims) != 1:
        dim_names = ", ".join(graph.dims) or "none"
        raise RefusedError(f"which dimension is the batch is not known: the model has {dim_names}")
    dim = dim or next(iter(graph.dims))
    if dim not in graph.dims:
        raise RefusedError(f"the model has no dimension {dim!r}")
    if graph.dims[dim] % plan.ranks:
        raise RefusedError(f"{dim} = {graph.dims[dim]} is no multiple of {plan.ranks} ranks")
    if fixed_numbers(graph, dim):
        raise RefusedError(f"{fixed_numbers(graph, dim)[0]}: it does not follow {dim}")
    for op in graph.leaves():
        if is_collective(op):
            raise op_refusal(op, "is there already: the step runs on several ranks")
    return dim


class _RankBuilder:
    """Builder of one rank's model."""

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        rank: int,
        dim: str,
        tables: Sequence[EmbeddingTable],
        propagation: ShardPropagation,
        group: str = GROUP,
    ) -> None:
        self.group = group
        self.graph, self.plan, self.rank, self.dim = graph, plan, rank, dim
        self.tables, self.propagation = tables, propagation
        self.edit = Edit(graph)
        device = tables[0].weight.device if tables else graph.device
        self.forward, self.backward = (Writer(graph, device, group) for _ in range(2))
        self.backward.used_names = self.forward.used_names
        self.parts: dict[str, TableShard | None] = {}
        self.new_op_count = self.split_count = 0

    def build(self) -> ShardResult:
        """Return the rank's model."""
        if self.tables:
            self._exchange()
        for bucket in self.propagation.buckets:
            self._reduce(bucket)
        graph, layouts = self._with_local_shapes(self.edit.commit()), self._layouts()
        if self.plan.optimizer == SPLIT:
            excluded = frozenset(name for table in self.tables for name in table.tensor_names)
            graph, split_layouts, self.split_count = split_optimizer(
                graph, self.rank, self.plan.ranks, excluded
            )
            layouts = merge_layouts(layouts, split_layouts)
        settings = _settings(graph, self.rank, self.dim, layouts)
        graph = with_ranks(replace(graph, settings=settings), self.plan.ranks)
        sum_count = sum(len(bucket.tensors) for bucket in self.propagation.buckets)
        return ShardResult(
            graph, self.new_op_count, sum_count, self._legality(sum_count), tuple(layouts)
        )

    def _legality(self, sum_count: int) -> str:
        update_text = (
            f"; rows of {self.split_count} parameters are updated apart, then gathered"
            if self.plan.optimizer
            else ""
        )
        verb = "they are" if sum_count != 1 else "it is"
        return (
            f"every tensor is the same on all ranks, or its part along {self.dim}; "
            f"{sum_count} summed over ranks before {verb} read whole{update_text}"
        )

    def _exchange(self) -> None:
        """Replace lookups and their gradients with exchanges."""
        first = self.tables[0]
        sample = first.out.shape[0]
        factors = {gradient.factor for gradient in self.propagation.gradients.values()}
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
            placed_op = replace(
                op, thread=anchor.thread, stream=anchor.stream, phase=anchor.phase, origin=ORIGIN
            )
            new_op = op if op.name.startswith("aten.embedding") or op in outer_ids else placed_op
            self.edit.insert(new_op, after=anchor) if after else self.edit.insert(
                new_op, before=anchor
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

    def _reduce(self, bucket: SumBucket) -> None:
        """Sum the tensors of a bucket, with one collective per type and kind of sum."""
        groups: dict[tuple[str, int], list[Tensor]] = {}
        for tensor, placement in bucket.tensors:
            groups.setdefault((tensor.dtype, placement.factor), []).append(tensor)
        write = Writer(self.graph, self.graph.device, self.group)
        for (_, factor), tensors in groups.items():
            write.all_reduce(tensors, "avg" if factor else "sum")
        self.new_op_count += len(write.ops)
        for op in write.ops:
            if bucket.before is None:
                self.edit.insert(replace(op, phase="backward", origin=ORIGIN))
                continue
            anchor = bucket.before
            new_op = replace(
                op, thread=anchor.thread, stream=anchor.stream, phase=anchor.phase, origin=ORIGIN
            )
            self.edit.insert(new_op, before=anchor)

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

    def _layouts(self) -> list[TensorLayout]:
        """Return the layouts of all tensors that exist before the step or leave it."""
        layouts = []
        for name in live_out(self.graph):
            tensor = self.graph.by_name[name]
            placement, axis = self.propagation.placements.get(name), None
            if name in self.parts:
                part = self.parts[name]
                if part is not None:
                    layouts.append(TensorLayout(name, "piece", part.rows, part.columns))
                continue
            axis = batch_axis(tensor, self.dim)
            if axis is not None:
                layouts.append(TensorLayout(name, "split", (axis, axis + 1)))
            elif placement is not None and placement.kind == "part":
                layouts.append(TensorLayout(name, "mean" if placement.factor else "sum"))
        return layouts


def _settings(
    graph: Graph, rank: int, dim: str, layouts: Sequence[TensorLayout]
) -> dict[str, Value]:
    settings: dict[str, Value] = {RANK: rank, BATCH: dim, PARTS: layout_text(layouts)}
    return {**graph.settings, **settings}
