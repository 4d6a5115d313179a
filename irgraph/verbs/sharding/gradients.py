"""Gradients of bags: back to the ranks that hold the rows, the way the bags came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor
from irgraph.plans.plan import ROW, TableShard
from irgraph.verbs.sharding.exchange import Exchange, Piece
from irgraph.verbs.sharding.tables import Table
from irgraph.verbs.sharding.writer import Writer


@dataclass
class Gradients:
    """The gradients of the bags that an exchange brought.

    Attributes:
        forward: the exchange.
        write: where to.
        scaled: by how much they are too large, a power of the number of ranks.
    """

    forward: Exchange
    write: Writer
    scaled: int = 0

    def send_back(self) -> dict[str, Tensor]:
        """Write the exchange of the bags' gradients; return those of each table held here."""
        found = self._gathered_rows()
        tables = [table for table in self.forward.tables if self.forward.scheme(table) != ROW]
        if not tables:
            return found
        write, widths = (
            self.write,
            [self.forward.width(rank) for rank in range(self.forward.plan.ranks)],
        )
        sizes = [write.sizes.times(self.forward.batch, width) for width in widths]
        blocks = [self._gradients(pieces) for pieces in self.forward.pieces]
        joined = write.cat([block for block in blocks if block is not None], 0)
        sent = self._divided(joined)
        received = write.exchange(sent, sizes, [sizes[self.forward.rank]] * self.forward.plan.ranks)
        if not widths[self.forward.rank]:
            return found
        rows = write.sizes.times(self.forward.plan.ranks, self.forward.batch)
        matrix, before = write.view(received, rows, widths[self.forward.rank]), 0
        for table, part in self.forward.pieces[self.forward.rank]:
            if self.forward.scheme(table) != ROW:
                columns = part.columns[1] - part.columns[0]
                found[table.name] = write.cut(matrix, 1, before, columns)
                before += columns
        return found

    def _gradients(self, pieces: Sequence[Piece]) -> Tensor | None:
        """Return the gradients of the bags whose parts one rank holds, as a vector."""
        write, found = self.write, []
        for table, part in pieces:
            if self.forward.scheme(table) != ROW:
                assert table.gradient is not None
                columns = part.columns[1] - part.columns[0]
                found.append(write.cut(table.gradient, 1, part.columns[0], columns))
        return write.flat(write.cat(found, 1)) if found else None

    def _gathered_rows(self) -> dict[str, Tensor]:
        """Gather the gradients of bags of which every rank holds rows."""
        write = self.write
        tables = [table for table in self.forward.tables if self.forward.scheme(table) == ROW]
        if not tables:
            return {}
        given = [t.gradient for t in tables if t.gradient is not None]
        joined = write.whole(write.cat(given, 1))
        matrix = write.all_gather(self._divided(joined), self.forward.plan.ranks)
        found, before = {}, 0
        for table in tables:
            columns = int(table.weight.shape[1])
            found[table.name] = write.cut(matrix, 1, before, columns)
            before += columns
        return found

    def _divided(self, given: Tensor) -> Tensor:
        """Return gradients of the whole step's loss: a rank divides by its own samples alone."""
        if not self.scaled:
            return given
        made = self.write.fresh("scaled", given.dtype, given.shape)
        return self.write.call("aten.mul", [given, self.forward.plan.ranks**-self.scaled], made)

    def gradient_of(self, table: Table, part: TableShard, found: Tensor) -> Op:
        """Return the op that makes the gradient of what is held here."""
        assert table.backward is not None and table.gradient is not None
        changed = self.forward.changed(table, table.backward, {table.gradient.name: found})
        given: dict[str, Value] = {**changed.attributes, "num_weights": part.rows[1] - part.rows[0]}
        return replace(changed, attributes=given)
