"""Costs of a placement problem: the model of one rank is priced for every scheme.

The cost of a table under a scheme is the time of the kernels of ops that access its rows, and of
ops that prepare the operands of its lookup, in the model that ``shard`` writes for a plan with
this scheme for all tables. Collectives are priced as single ops over sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np
from msgspec.structs import replace

from irgraph.diagnostics import fail
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Value, tensors_in
from irgraph.ir.ranks import is_collective
from irgraph.ir.tensor import Tensor
from irgraph.planning.placement_costs import Choice, PlacementProblem, TableCosts, Time
from irgraph.plans.plan import COLUMN, DATA, ROW, TABLE, TABLE_ROW, Plan, Scheme, TableSharding
from irgraph.predict.options import PredictOptions
from irgraph.predict.prediction import Prediction, predict
from irgraph.schedule.memory.peak import peak_memory
from irgraph.verbs.sharding.embeddings import tables as sharding_tables
from irgraph.verbs.sharding.shard import shard

SIZES = tuple(2.0**power for power in range(8, 35))
"""Sizes in bytes at which collectives are priced; times between them are interpolated."""

MIN_SHARD_COLUMNS = 4
"""Minimum number of columns of a shard, of which it has a multiple, as in NeuroShard."""


def problem_of(
    graph: Graph, ranks: int, memory: float, options: PredictOptions
) -> PlacementProblem:
    """Return the placement problem of a step's tables, with their costs on a device.

    Args:
        graph: the unsharded step.
        ranks: number of ranks.
        memory: bytes of each rank's device; memory that no table uses is subtracted.
        options: options of ``predict``.

    Raises:
        IrgraphError: a collective has no time on this device.
        RefusedError: the step cannot be sharded.
    """
    costs = _Costs(graph, ranks, options)
    table_costs = [costs.table(table) for table in costs.tables]
    trained = all(t.backward is not None for t in costs.tables)
    return PlacementProblem(
        ranks,
        memory - costs.base,
        tuple(table_costs),
        costs.collective("_c10d_functional.all_to_all_single"),
        costs.collective("_c10d_functional.reduce_scatter_tensor"),
        costs.collective("_c10d_functional.all_reduce_"),
        2 if trained else 1,
    )


class _Costs:
    def __init__(self, graph: Graph, ranks: int, options: PredictOptions) -> None:
        self.graph, self.ranks, self.options = graph, ranks, options
        self.tables = sharding_tables.tables_of(graph)
        self.copies = {t.name: sum(self._bytes(t)) for t in self.tables}
        self.base = float(self._base())
        self.times: dict[tuple[str, int], Mapping[str, float]] = {}

    def _bytes(self, table: sharding_tables.EmbeddingTable) -> Iterator[int]:
        """Yield the bytes of every buffer with a table's rows, its gradient or its state."""
        names = self.graph.by_name
        yield from {names[n].buffer: names[n].nbytes for n in table.tensor_names}.values()

    def _base(self) -> int:
        """Return the peak memory in bytes of a rank without tables."""
        if self.ranks == 1:
            return 0
        empty = shard(self.graph, self._uniform_plan(TABLE, 1), self.ranks - 1).graph
        return peak_memory(empty).peak

    def _uniform_plan(self, scheme: Scheme, holders: int) -> Plan:
        """Return a plan with one scheme for all tables from rank 0 on; others stay unsplit."""
        ranks = () if scheme in (ROW, DATA) else tuple(range(holders))
        return Plan(
            self.ranks,
            {
                table.name: TableSharding(scheme, ranks)
                if self._is_possible(table, scheme, holders)
                else TableSharding(TABLE, (0,))
                for table in self.tables
            },
        )

    def _is_possible(
        self, table: sharding_tables.EmbeddingTable, scheme: Scheme, holders: int
    ) -> bool:
        rows, columns = map(int, table.weight.shape)
        if scheme in (ROW, TABLE_ROW):
            is_splittable = not table.arguments.get("mode", 0) and not table.arguments.get(
                "scale_grad_by_freq"
            )
            return is_splittable and -(-rows // holders) * (holders - 1) < rows
        return scheme != COLUMN or columns % (MIN_SHARD_COLUMNS * holders) == 0

    def table(self, table: sharding_tables.EmbeddingTable) -> TableCosts:
        """Return a table with its costs under every scheme."""
        rows, columns = map(int, table.weight.shape)
        pooling = int(table.indices.numel) / max(int(table.offsets.numel), 1)
        return TableCosts(table.name, rows, columns, pooling, tuple(self.choices(table)))

    def choices(self, table: sharding_tables.EmbeddingTable) -> Iterator[Choice]:
        """Yield the possible shardings of a table, beginning with the unsplit table on one rank."""
        rows, columns = map(int, table.weight.shape)
        bags, ids = int(table.out.shape[0]), table.indices.nbytes + table.offsets.nbytes
        sent, memory = float(bags * columns * table.out.itemsize), float(self.copies[table.name])
        yield Choice(TABLE, 1, self._time(table, TABLE, 1), memory, sent, ids)
        count = 2
        while count <= self.ranks and self._is_possible(table, COLUMN, count):
            time = self._time(table, COLUMN, count)
            yield Choice(COLUMN, count, time, memory / count, sent / count, ids)
            count *= 2
        count = 2
        while count < self.ranks and self._is_possible(table, TABLE_ROW, count):
            time = self._time(table, TABLE_ROW, count)
            yield Choice(TABLE_ROW, count, time, memory / count, sent, ids)  # each sends whole bags
            count *= 2
        if self.ranks > 1 and self._is_possible(table, ROW, self.ranks):
            time = self._time(table, ROW, self.ranks)
            yield Choice(ROW, self.ranks, time, memory / self.ranks, ids=ids, reduced=sent)
        if self.ranks > 1:
            time = self._time(table, DATA, self.ranks)
            copied = float(rows * columns * table.weight.itemsize)
            yield Choice(
                DATA, self.ranks, time, memory, copied=copied * (table.backward is not None)
            )

    def _time(self, table: sharding_tables.EmbeddingTable, scheme: Scheme, holders: int) -> float:
        key = scheme, holders
        if key not in self.times:
            self.times[key] = self._kernel_times(self._uniform_plan(scheme, holders))
        return self.times[key][table.name]

    def _kernel_times(self, plan: Plan) -> Mapping[str, float]:
        """Return the time of each table's kernels on rank 0 of a plan in microseconds, by name."""
        model = shard(self.graph, plan, 0).graph
        priced = predict(model, self.options).priced
        producers = {tensor.name: leaf for leaf in model.leaves() for tensor in leaf.outputs}
        lookups = {name: op for name, _, op in sharding_tables.lookups(model)}
        times = {}
        for table in self.tables:
            table_ops = _ops_on_tables(model, table.tensor_names, lookups[table.name], producers)
            times[table.name] = sum(
                kernel.time * _share_of_lists(op, table.tensor_names)
                for op in table_ops
                for kernel in priced.kernels.get(op, ())
            )
        return times

    def collective(self, name: str) -> Time:
        """Return the time of a collective over the bytes of its message."""
        if self.ranks == 1:
            return lambda size: 0.0
        ops = [_collective(name, int(size), self.ranks) for size in SIZES]
        graph = replace(self.graph, ops=tuple(ops), tensors=(), returned=None)
        priced = _predict_ranks(graph, self.options, self.ranks).priced
        if priced.unknown:
            reason = priced.reasons.get(priced.unknown[0], "no cost model knows it")
            hint = "name the links between ranks with --fabric"
            raise fail(f"{name} has no time on {priced.device}: {reason}", hint=hint)
        times = [sum(kernel.time for kernel in priced.of(op)) for op in ops]
        logs = np.log(SIZES)
        return lambda size: float(
            np.interp(np.log(max(size, 1.0)), logs, times) * max(1.0, size / SIZES[-1])
        )


def _predict_ranks(graph: Graph, options: PredictOptions, ranks: int) -> Prediction:
    with_ranks = options if options.ranks is not None else replace(options, ranks=ranks)
    return predict(graph, with_ranks)


def _collective(name: str, size: int, ranks: int) -> Op:
    """Return a collective with a message of ``size`` bytes."""
    operand = Tensor("given", "u8", (size,), "given")
    if name.endswith("all_reduce_"):
        attributes: dict[str, Value] = {"reduce_op": "avg", "group_name": "0"}
        return Op(name, (operand,), (), attributes, frozenset({"given"}))
    if name.endswith("all_to_all_single"):
        parts = (size // ranks,) * ranks
        attributes = {"output_split_sizes": parts, "input_split_sizes": parts, "group_name": "0"}
        return Op(name, (operand,), (replace(operand, name="made", buffer="made"),), attributes)
    output = Tensor("made", "u8", (size // ranks,), "made")
    return Op(
        name, (operand,), (output,), {"reduce_op": "sum", "group_size": ranks, "group_name": "0"}
    )


def _share_of_lists(op: Op, names: Collection[str]) -> float:
    """Return the share of a table in the bytes of an op's lists, 1 for an op without lists.

    A ``foreach`` update processes all parameters in one kernel, each in proportion to its bytes.
    """
    lists = [operand for operand in op.operands if isinstance(operand, (tuple, list))]
    bytes_by_name = {tensor.name: float(tensor.nbytes) for tensor in tensors_in(lists)}
    of_table = sum(size for name, size in bytes_by_name.items() if name in names)
    return of_table / sum(bytes_by_name.values()) if of_table else 1.0


def _ops_on_tables(
    model: Graph, tables: Collection[str], lookup: Op, producers: Mapping[str, Op]
) -> list[Op]:
    """Return the ops that access a table's rows, and the ops that prepare its lookup."""
    results = {
        op: op
        for op in model.walk()
        if any(tensor.name in tables for tensor in (*op.inputs, *op.outputs))
    }
    pending = [tensor.name for tensor in lookup.inputs]
    while pending:
        op = producers.get(pending.pop())
        if op is not None and op.origin == "shard" and not is_collective(op) and op not in results:
            results[op] = op
            pending += [tensor.name for tensor in op.inputs]
    return list(results.values())
