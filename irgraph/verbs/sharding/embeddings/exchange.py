"""Exchange of lookups: ids are received from all ranks, bags are sent to all ranks.

Every rank has its own samples. It sends the ids and offsets of a table to the ranks that store
parts of the table (two all-to-alls for all tables together). Each rank looks up its parts for all
samples, and the bags are returned: by an all-to-all, or summed by a reduce-scatter if every rank
stores rows. Their gradients are sent the same ways (``sharding.embeddings.gradients``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from irgraph.ir.edit import map_tensors
from irgraph.ir.op import Op
from irgraph.ir.tensor import DType, Tensor
from irgraph.plans.plan import ROW, TABLE_ROW, Plan, TableShard
from irgraph.verbs.refusal import op_refusal
from irgraph.verbs.sharding.embeddings.tables import EmbeddingTable
from irgraph.verbs.sharding.writer import Writer

Piece = tuple[EmbeddingTable, TableShard]


@dataclass
class Exchange:
    """The lookups of all sharded tables on one rank.

    Attributes:
        tables: the sharded tables, in the order of their lookups.
        batch: number of samples of one rank.
    """

    tables: Sequence[EmbeddingTable]
    plan: Plan
    rank: int
    batch: int
    forward: Writer
    pieces: list[list[Piece]] = field(init=False)
    lookup_inputs: dict[str, tuple[Tensor, Tensor, Tensor | None]] = field(default_factory=dict)
    marks: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pieces = [[] for _ in range(self.plan.ranks)]
        for table in self.tables:
            rows, columns = map(int, table.weight.shape)
            for part in self.plan.shards(table.name, rows, columns):
                self.pieces[part.rank].append((table, part))
        kinds = {(t.out.dtype, t.indices.dtype, t.offsets.dtype) for t in self.tables}
        if len(kinds) > 1:
            last = self.tables[-1].forward
            raise op_refusal(last, "looks up a table of another type: they are exchanged together")

    def scheme(self, table: EmbeddingTable) -> str:
        """Return the sharding scheme of a table."""
        return self.plan.tables[table.name].scheme

    def part(self, table: EmbeddingTable) -> TableShard | None:
        """Return this rank's part of a table, ``None`` if it has none."""
        return next((part for owner, part in self.pieces[self.rank] if owner is table), None)

    def by_row(self, table: EmbeddingTable) -> bool:
        """Return whether a table's bags are sums over ranks."""
        return self.scheme(table) in (ROW, TABLE_ROW)

    def look_up(self, finish: Callable[[EmbeddingTable, Tensor | None, Writer], Tensor]) -> None:
        """Write the ops that replace the lookups.

        ``finish`` returns the tensor of a table's bags, given the tensor computed so far.
        """
        write, bags = self.forward, {}
        ids = self._gather_ids("indices")
        starts = self._bag_starts()
        for table, part in self.pieces[self.rank]:
            table_ids = ids[table.name]
            weights = None
            if self.by_row(table):
                table_ids, weights = self._mask_ids(table, part, table_ids)
            self.lookup_inputs[table.name] = table_ids, starts[table.name], weights
            bags[table.name] = self._write_lookup(table, part)
        self._reduce_bags(bags, finish)
        self._return_bags(bags, finish)
        assert write.ops

    def _gather_ids(self, attribute: str) -> dict[str, Tensor]:
        """Return the ids of all ranks for each local table, concatenated in order of ranks."""
        write, local_pieces = self.forward, self.pieces[self.rank]
        received = self._send_inputs(attribute)
        sizes = [vector_size(getattr(table, attribute)) for table, _ in local_pieces]
        total = write.sizes.plus(*sizes)
        ids = {}
        for position, (table, _) in enumerate(local_pieces):
            before = write.sizes.plus(*sizes[:position])
            starts = [
                write.sizes.plus(write.sizes.times(rank, total), before)
                for rank in range(self.plan.ranks)
            ]
            single = received if len(local_pieces) == 1 else None
            ids[table.name] = single or write.cat(
                [write.cut(received, 0, start, sizes[position]) for start in starts], 0, "ids"
            )
        return ids

    def _send_inputs(self, attribute: str) -> Tensor:
        """Send each rank the ids or offsets of its tables; return the received vector."""
        write = self.forward
        vectors = [getattr(table, attribute) for pieces in self.pieces for table, _ in pieces]
        parts = [self._total(pieces, attribute) for pieces in self.pieces]
        received = [parts[self.rank]] * self.plan.ranks
        return write.exchange(write.cat([write.contiguous(t) for t in vectors], 0), parts, received)

    def _total(self, pieces: Sequence[Piece], attribute: str) -> int:
        return self.forward.sizes.plus(
            *(vector_size(getattr(table, attribute)) for table, _ in pieces)
        )

    def _bag_starts(self) -> dict[str, Tensor]:
        """Return the starts of bags in the concatenated ids of all ranks, by local table."""
        write, local_pieces, ranks = self.forward, self.pieces[self.rank], self.plan.ranks
        received = self._send_inputs("offsets")
        if not local_pieces:
            return {}
        all_offsets = write.view(received, ranks, len(local_pieces), self.batch)
        numbers = write.view(write.arange(received.dtype, ranks), ranks, 1)
        starts = {}
        for position, (table, _) in enumerate(local_pieces):
            rows = self._select_table(all_offsets, position)
            offsets = write.fresh("offsets", received.dtype, rows.shape)
            count = vector_size(table.indices)
            write.call("aten.add", [rows, numbers], offsets, alpha=count)
            starts[table.name] = write.view(offsets, write.sizes.times(ranks, self.batch))
        return starts

    def _select_table(self, offsets: Tensor, position: int) -> Tensor:
        """Return one table's offsets of all ranks: a position along the middle axis."""
        write, (ranks, count, batch) = self.forward, offsets.shape
        shift = write.sizes.times(position, batch, offsets.itemsize)
        strides = (write.sizes.times(count, batch), 1)
        selected = replace(
            offsets,
            name=write.fresh("select", offsets.dtype, ()).name,
            shape=(ranks, batch),
            strides=None if count == 1 else strides,
            offset=write.sizes.plus(offsets.offset, shift),
        )
        return write.call("aten.select", [offsets], selected, dim=1, index=position)

    def _mask_ids(
        self, table: EmbeddingTable, part: TableShard, ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the local rows of ids, and weights: 0 for ids of rows on other ranks."""
        write, (first, end) = self.forward, part.rows
        if table.arguments.get("mode", 0) != 0 or table.arguments.get("scale_grad_by_freq"):
            raise op_refusal(
                table.forward, "does not make plain sums that could be added up over ranks"
            )
        local_ids = ids
        if first:
            local_ids = write.fresh("moved", ids.dtype, ids.shape)
            write.call("aten.sub", [ids, first], local_ids)
        inside = write.fresh("inside", ids.dtype, ids.shape)
        write.call("aten.clamp", [local_ids], inside, min=0, max=end - first - 1)
        equal = write.fresh("here", "bool", ids.shape)
        write.call("aten.eq", [local_ids, inside], equal)
        weights = write.fresh("weights", table.weight.dtype, ids.shape)
        write.call("aten._to_copy", [equal], weights, dtype=DType(table.weight.dtype))
        return inside, weights

    def _write_lookup(self, table: EmbeddingTable, part: TableShard) -> Tensor:
        """Write the lookup of a local part, for the samples of all ranks; return its bags."""
        write = self.forward
        rows = write.sizes.times(self.plan.ranks, self.batch)
        columns = part.columns[1] - part.columns[0]
        bags = write.fresh("bags", table.out.dtype, (rows, columns))
        for tensor in table.forward.outputs[1:]:
            size = [write.sizes.times(self.plan.ranks, n) for n in tensor.shape]
            self.marks[tensor.name] = replace(tensor, shape=tuple(size))
        self.forward.ops.append(
            self.with_exchanged_inputs(table, table.outer, {table.out.name: bags})
        )
        return bags

    def with_exchanged_inputs(
        self, table: EmbeddingTable, op: Op, results: Mapping[str, Tensor]
    ) -> Op:
        """Return a table's op with ids, offsets and weights of all ranks."""
        ids, offsets, weights = self.lookup_inputs[table.name]
        names = {table.indices.name: ids, table.offsets.name: offsets, **self.marks, **results}
        rewritten = map_tensors(op, lambda tensor: names.get(tensor.name, tensor))
        return rewritten if weights is None else _with_weights(rewritten, weights)

    def _reduce_bags(
        self,
        bags: Mapping[str, Tensor],
        finish: Callable[[EmbeddingTable, Tensor | None, Writer], Tensor],
    ) -> None:
        """Sum the bags of row-wise tables over all ranks."""
        write = self.forward
        tables = [table for table in self.tables if self.scheme(table) == ROW]
        if not tables:
            return
        matrix = write.cat([bags[table.name] for table in tables], 1)
        sums = write.reduce_scatter(matrix, self.plan.ranks, self.batch)
        before = 0
        for table in tables:
            columns = int(table.weight.shape[1])
            finish(table, write.cut(sums, 1, before, columns), write)
            before += columns

    def _return_bags(
        self,
        bags: Mapping[str, Tensor],
        finish: Callable[[EmbeddingTable, Tensor | None, Writer], Tensor],
    ) -> None:
        """Send every rank the bags of its samples, and assemble the received bags."""
        tables = [table for table in self.tables if self.scheme(table) != ROW]
        if not tables:
            return
        write, widths = self.forward, [self.width(rank) for rank in range(self.plan.ranks)]
        local_bags = [bags[t.name] for t, _ in self.pieces[self.rank] if self.scheme(t) != ROW]
        sent = (
            write.flat(write.cat(local_bags, 1))
            if local_bags
            else write.zeros(tables[0].out.dtype, 0)
        )
        sizes = [write.sizes.times(self.batch, width) for width in widths]
        received = write.exchange(sent, [sizes[self.rank]] * self.plan.ranks, sizes)
        blocks = self._blocks(received, widths)
        for table in tables:
            columns_by_piece = [
                self.forward.cut(blocks[rank], 1, start, columns)
                for rank, start, columns in self._column_spans(table)
            ]
            self._assemble(table, columns_by_piece, finish)

    def width(self, rank: int) -> int:
        """Return the columns of all bags that a rank sends."""
        return sum(
            part.columns[1] - part.columns[0]
            for table, part in self.pieces[rank]
            if self.scheme(table) != ROW
        )

    def _blocks(self, received: Tensor, widths: Sequence[int]) -> list[Tensor]:
        """Return the received block of each rank as a matrix of this rank's samples."""
        write, start, blocks = self.forward, 0, []
        for width in widths:
            size = write.sizes.times(self.batch, width)
            flat = write.cut(received, 0, start, size) if width else received
            blocks.append(write.view(flat, self.batch, width) if width else received)
            start = write.sizes.plus(start, size)
        return blocks

    def _column_spans(self, table: EmbeddingTable) -> list[tuple[int, int, int]]:
        """Return rank, first column and number of columns of each part in its rank's block."""
        spans = []
        for rank, pieces in enumerate(self.pieces):
            start = 0
            for owner, part in pieces:
                columns = part.columns[1] - part.columns[0]
                if owner is table:
                    spans.append((part.columns[0], rank, start, columns))
                start += columns if self.scheme(owner) != ROW else 0
        return [span[1:] for span in sorted(spans)]

    def _assemble(
        self,
        table: EmbeddingTable,
        blocks: Sequence[Tensor],
        finish: Callable[[EmbeddingTable, Tensor | None, Writer], Tensor],
    ) -> None:
        """Join groups of columns, or add up blocks of rows."""
        write = self.forward
        if len(blocks) == 1:
            finish(table, blocks[0], write)
        elif not self.by_row(table):
            write.call("aten.cat", [tuple(blocks)], finish(table, None, write), dim=1)
        else:
            total = blocks[0]
            for number, block in enumerate(blocks[1:], 2):
                is_last = number == len(blocks)
                result = write.fresh("sum", block.dtype, block.shape)
                result = finish(table, None, write) if is_last else result
                total = write.call("aten.add", [total, block], result)


def vector_size(tensor: Tensor) -> int:
    """Return the number of elements of a vector, as an expression."""
    return tensor.shape[0]


def _with_weights(op: Op, weights: Tensor) -> Op:
    body = tuple(_with_weights(child, weights) for child in op.body)
    return replace(op, attributes={**op.attributes, "per_sample_weights": weights}, body=body)
