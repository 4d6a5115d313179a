"""What a rank runs in place of its lookups: ids come from all ranks, bags go to all ranks.

Every rank has its own samples. It sends the ids and offsets of a table to the ranks that hold
parts of it (two all-to-alls for all tables together), each looks up what it holds for all samples,
and the bags come back: by an all-to-all, or added up by a reduce-scatter where every rank holds
rows. Their gradients go back the same ways (``irgraph.verbs.sharding.gradients``).
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
from irgraph.verbs.sharding.tables import Table
from irgraph.verbs.sharding.writer import Writer

Piece = tuple[Table, TableShard]


@dataclass
class Exchange:
    """The lookups of all tables that are spread over ranks, as one of the ranks runs them.

    Attributes:
        tables: those that are spread, in the order of their lookups.
        batch: samples of one rank.
    """

    tables: Sequence[Table]
    plan: Plan
    rank: int
    batch: int
    forward: Writer
    pieces: list[list[Piece]] = field(init=False)
    known: dict[str, tuple[Tensor, Tensor, Tensor | None]] = field(default_factory=dict)
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

    def scheme(self, table: Table) -> str:
        """Return how a table is spread."""
        return self.plan.tables[table.name].scheme

    def part(self, table: Table) -> TableShard | None:
        """Return what this rank holds of a table."""
        return next((part for known, part in self.pieces[self.rank] if known is table), None)

    def by_row(self, table: Table) -> bool:
        """Return whether a table's bags are sums over ranks."""
        return self.scheme(table) in (ROW, TABLE_ROW)

    def look_up(self, finish: Callable[[Table, Tensor | None, Writer], Tensor]) -> None:
        """Write what stands in place of the lookups.

        ``finish`` says under which tensor a table's bags leave, given what they are so far.
        """
        write, sent = self.forward, {}
        ids = self._gathered("indices")
        starts = self._starts()
        for table, part in self.pieces[self.rank]:
            given = ids[table.name]
            weights = None
            if self.by_row(table):
                given, weights = self._masked(table, part, given)
            self.known[table.name] = given, starts[table.name], weights
            sent[table.name] = self._lookup(table, part)
        self._reduced(sent, finish)
        self._returned(sent, finish)
        assert write.ops

    def _gathered(self, what: str) -> dict[str, Tensor]:
        """Return the ids that all ranks have for each table here, one rank's after the other's."""
        write, mine = self.forward, self.pieces[self.rank]
        received = self._sent(what)
        sizes = [int_of(getattr(table, what)) for table, _ in mine]
        total = write.sizes.plus(*sizes)
        found = {}
        for place, (table, _) in enumerate(mine):
            before = write.sizes.plus(*sizes[:place])
            starts = [
                write.sizes.plus(write.sizes.times(rank, total), before)
                for rank in range(self.plan.ranks)
            ]
            cuts = received if len(mine) == 1 else None
            found[table.name] = cuts or write.cat(
                [write.cut(received, 0, start, sizes[place]) for start in starts], 0, "ids"
            )
        return found

    def _sent(self, what: str) -> Tensor:
        """Send each rank the ids or offsets of its tables; return what comes."""
        write = self.forward
        given = [getattr(table, what) for pieces in self.pieces for table, _ in pieces]
        parts = [self._total(pieces, what) for pieces in self.pieces]
        received = [parts[self.rank]] * self.plan.ranks
        return write.exchange(write.cat([write.whole(t) for t in given], 0), parts, received)

    def _total(self, pieces: Sequence[Piece], what: str) -> int:
        return self.forward.sizes.plus(*(int_of(getattr(table, what)) for table, _ in pieces))

    def _starts(self) -> dict[str, Tensor]:
        """Return where bags start among the ids of all ranks: each rank's after those before."""
        write, mine, ranks = self.forward, self.pieces[self.rank], self.plan.ranks
        received = self._sent("offsets")
        if not mine:
            return {}
        every = write.view(received, ranks, len(mine), self.batch)
        numbers = write.view(write.counted(received.dtype, ranks), ranks, 1)
        found = {}
        for place, (table, _) in enumerate(mine):
            rows = self._selected(every, place)
            made = write.fresh("offsets", received.dtype, rows.shape)
            count = int_of(table.indices)
            write.call("aten.add", [rows, numbers], made, alpha=count)
            found[table.name] = write.view(made, write.sizes.times(ranks, self.batch))
        return found

    def _selected(self, every: Tensor, place: int) -> Tensor:
        """Return one table's offsets of all ranks: a place along the middle axis."""
        write, (ranks, count, batch) = self.forward, every.shape
        moved = write.sizes.times(place, batch, every.itemsize)
        strides = (write.sizes.times(count, batch), 1)
        made = replace(
            every,
            name=write.fresh("select", every.dtype, ()).name,
            shape=(ranks, batch),
            strides=None if count == 1 else strides,
            offset=write.sizes.plus(every.offset, moved),
        )
        return write.call("aten.select", [every], made, dim=1, index=place)

    def _masked(self, table: Table, part: TableShard, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows here that ids name, and weights: 0 for ids of rows held elsewhere."""
        write, (first, end) = self.forward, part.rows
        if table.given.get("mode", 0) != 0 or table.given.get("scale_grad_by_freq"):
            raise op_refusal(
                table.forward, "does not make plain sums that could be added up over ranks"
            )
        moved = ids
        if first:
            moved = write.fresh("moved", ids.dtype, ids.shape)
            write.call("aten.sub", [ids, first], moved)
        inside = write.fresh("inside", ids.dtype, ids.shape)
        write.call("aten.clamp", [moved], inside, min=0, max=end - first - 1)
        equal = write.fresh("here", "bool", ids.shape)
        write.call("aten.eq", [moved, inside], equal)
        weights = write.fresh("weights", table.weight.dtype, ids.shape)
        write.call("aten._to_copy", [equal], weights, dtype=DType(table.weight.dtype))
        return inside, weights

    def _lookup(self, table: Table, part: TableShard) -> Tensor:
        """Write the lookup of what is held here, for the samples of all ranks."""
        write = self.forward
        rows = write.sizes.times(self.plan.ranks, self.batch)
        columns = part.columns[1] - part.columns[0]
        made = write.fresh("bags", table.out.dtype, (rows, columns))
        for tensor in table.forward.outputs[1:]:
            size = [write.sizes.times(self.plan.ranks, n) for n in tensor.shape]
            self.marks[tensor.name] = replace(tensor, shape=tuple(size))
        self.forward.ops.append(self.changed(table, table.outer, {table.out.name: made}))
        return made

    def changed(self, table: Table, op: Op, more: Mapping[str, Tensor]) -> Op:
        """Return a table's op with ids, offsets and weights of all ranks."""
        ids, offsets, weights = self.known[table.name]
        names = {table.indices.name: ids, table.offsets.name: offsets, **self.marks, **more}
        changed = map_tensors(op, lambda tensor: names.get(tensor.name, tensor))
        return changed if weights is None else _weighted(changed, weights)

    def _reduced(
        self,
        bags: Mapping[str, Tensor],
        finish: Callable[[Table, Tensor | None, Writer], Tensor],
    ) -> None:
        """Add up over all ranks what every rank has looked up of its rows."""
        write = self.forward
        tables = [table for table in self.tables if self.scheme(table) == ROW]
        if not tables:
            return
        joined = write.cat([bags[table.name] for table in tables], 1)
        summed = write.reduce_scatter(joined, self.plan.ranks, self.batch)
        before = 0
        for table in tables:
            columns = int(table.weight.shape[1])
            finish(table, write.cut(summed, 1, before, columns), write)
            before += columns

    def _returned(
        self,
        bags: Mapping[str, Tensor],
        finish: Callable[[Table, Tensor | None, Writer], Tensor],
    ) -> None:
        """Send every rank the bags of its samples, and put together what comes."""
        tables = [table for table in self.tables if self.scheme(table) != ROW]
        if not tables:
            return
        write, widths = self.forward, [self.width(rank) for rank in range(self.plan.ranks)]
        here = [bags[t.name] for t, _ in self.pieces[self.rank] if self.scheme(t) != ROW]
        sent = write.flat(write.cat(here, 1)) if here else write.filled(tables[0].out.dtype, 0)
        sizes = [write.sizes.times(self.batch, width) for width in widths]
        received = write.exchange(sent, [sizes[self.rank]] * self.plan.ranks, sizes)
        blocks = self._blocks(received, widths)
        for table in tables:
            found = [
                self.forward.cut(blocks[rank], 1, start, columns)
                for rank, start, columns in self._places(table)
            ]
            self._put_together(table, found, finish)

    def width(self, rank: int) -> int:
        """Return the columns of all bags that a rank sends."""
        return sum(
            part.columns[1] - part.columns[0]
            for table, part in self.pieces[rank]
            if self.scheme(table) != ROW
        )

    def _blocks(self, received: Tensor, widths: Sequence[int]) -> list[Tensor]:
        """Return what comes from each rank as a matrix of this rank's samples."""
        write, start, blocks = self.forward, 0, []
        for width in widths:
            size = write.sizes.times(self.batch, width)
            flat = write.cut(received, 0, start, size) if width else received
            blocks.append(write.view(flat, self.batch, width) if width else received)
            start = write.sizes.plus(start, size)
        return blocks

    def _places(self, table: Table) -> list[tuple[int, int, int]]:
        """Return the rank of each part of a table, and its columns among those of that rank."""
        found = []
        for rank, pieces in enumerate(self.pieces):
            start = 0
            for known, part in pieces:
                columns = part.columns[1] - part.columns[0]
                if known is table:
                    found.append((part.columns[0], rank, start, columns))
                start += columns if self.scheme(known) != ROW else 0
        return [place[1:] for place in sorted(found)]

    def _put_together(
        self,
        table: Table,
        found: Sequence[Tensor],
        finish: Callable[[Table, Tensor | None, Writer], Tensor],
    ) -> None:
        """Join groups of columns, or add up blocks of rows."""
        write = self.forward
        if len(found) == 1:
            finish(table, found[0], write)
        elif not self.by_row(table):
            write.call("aten.cat", [tuple(found)], finish(table, None, write), dim=1)
        else:
            total = found[0]
            for place, piece in enumerate(found[1:], 2):
                last = place == len(found)
                made = write.fresh("sum", piece.dtype, piece.shape)
                made = finish(table, None, write) if last else made
                total = write.call("aten.add", [total, piece], made)


def int_of(tensor: Tensor) -> int:
    """Return the elements of a vector as an expression."""
    return tensor.shape[0]


def _weighted(op: Op, weights: Tensor) -> Op:
    body = tuple(_weighted(child, weights) for child in op.body)
    return replace(op, attributes={**op.attributes, "per_sample_weights": weights}, body=body)
