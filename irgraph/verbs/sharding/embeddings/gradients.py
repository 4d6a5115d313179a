"""Exchange of the gradients of bags, back to the ranks that store the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor
from irgraph.plans.plan import ROW, TableShard
from irgraph.verbs.sharding.embeddings.exchange import Exchange, Piece
from irgraph.verbs.sharding.embeddings.tables import EmbeddingTable
from irgraph.verbs.sharding.writer import Writer


@dataclass
class Gradients:
    """The gradients of the bags that an exchange returned.

    Attributes:
        forward: the exchange.
        write: the writer of the ops.
        scale_power: power of the number of ranks by which the gradients are too large.
    """

    forward: Exchange
    write: Writer
    scale_power: int = 0

    def send_back(self) -> dict[str, Tensor]:
        """Write the exchange of the bags' gradients; return the gradient of each local table."""
        gradients = self._gather_row_gradients()
        tables = [table for table in self.forward.tables if self.forward.scheme(table) != ROW]
        if not tables:
            return gradients
        write, widths = (
            self.write,
            [self.forward.width(rank) for rank in range(self.forward.plan.ranks)],
        )
        sizes = [write.sizes.times(self.forward.batch, width) for width in widths]
        blocks = [self._piece_gradients(pieces) for pieces in self.forward.pieces]
        blocks_vector = write.cat([block for block in blocks if block is not None], 0)
        sent = self._unscale(blocks_vector)
        received = write.exchange(sent, sizes, [sizes[self.forward.rank]] * self.forward.plan.ranks)
        if not widths[self.forward.rank]:
            return gradients
        rows = write.sizes.times(self.forward.plan.ranks, self.forward.batch)
        matrix, start = write.view(received, rows, widths[self.forward.rank]), 0
        for table, part in self.forward.pieces[self.forward.rank]:
            if self.forward.scheme(table) != ROW:
                columns = part.columns[1] - part.columns[0]
                gradients[table.name] = write.cut(matrix, 1, start, columns)
                start += columns
        return gradients

    def _piece_gradients(self, pieces: Sequence[Piece]) -> Tensor | None:
        """Return the gradients of the bags whose parts one rank stores, as a vector."""
        write, slices = self.write, []
        for table, part in pieces:
            if self.forward.scheme(table) != ROW:
                assert table.gradient is not None
                columns = part.columns[1] - part.columns[0]
                slices.append(write.cut(table.gradient, 1, part.columns[0], columns))
        return write.flat(write.cat(slices, 1)) if slices else None

    def _gather_row_gradients(self) -> dict[str, Tensor]:
        """Gather the gradients of bags of row-wise tables, by table."""
        write = self.write
        tables = [table for table in self.forward.tables if self.forward.scheme(table) == ROW]
        if not tables:
            return {}
        bag_gradients = [t.gradient for t in tables if t.gradient is not None]
        rows = write.contiguous(write.cat(bag_gradients, 1))
        matrix = write.all_gather(self._unscale(rows), self.forward.plan.ranks)
        gradients, start = {}, 0
        for table in tables:
            columns = int(table.weight.shape[1])
            gradients[table.name] = write.cut(matrix, 1, start, columns)
            start += columns
        return gradients

    def _unscale(self, gradients: Tensor) -> Tensor:
        """Return gradients of the full step's loss: a rank divides by its own samples only."""
        if not self.scale_power:
            return gradients
        quotient = self.write.fresh("scaled", gradients.dtype, gradients.shape)
        return self.write.call(
            "aten.mul", [gradients, self.forward.plan.ranks**-self.scale_power], quotient
        )

    def gradient_of(self, table: EmbeddingTable, part: TableShard, gradient: Tensor) -> Op:
        """Return the op that computes the gradient of a local part of a table."""
        assert table.backward is not None and table.gradient is not None
        backward = self.forward.with_exchanged_inputs(
            table, table.backward, {table.gradient.name: gradient}
        )
        attributes: dict[str, Value] = {
            **backward.attributes,
            "num_weights": part.rows[1] - part.rows[0],
        }
        return replace(backward, attributes=attributes)
