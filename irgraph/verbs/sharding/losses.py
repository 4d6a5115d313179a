"""Mean losses over classes, as a sum divided by the total weight, so that ranks can add up both.

Such a mean excludes samples of an ignored class (-100), and may weight samples by their class.
Ranks have different numbers of these, therefore the mean of their means is another number.
"""

from __future__ import annotations

from msgspec.structs import replace

from irgraph.ir.edit import Edit, without_times
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Value
from irgraph.ops.book import names_with
from irgraph.ops.operator import Trait
from irgraph.verbs.sharding.writer import Writer

MEAN, SUM = 1, 2
"""Reductions of losses, by torch's numbers."""

REDUCTION_POSITION = 3
"""Position of the reduction among the operands."""


def with_sums(graph: Graph) -> Graph:
    """Return a graph whose mean losses over classes are quotients; the same graph without any."""
    edit, write = Edit(graph), Writer(graph, graph.device)
    losses = names_with(Trait.CLASS_LOSS)
    means = [leaf for leaf in graph.leaves() if leaf.name in losses and _reduction(leaf) == MEAN]
    for leaf in means:
        loss, count = leaf.outputs
        total = write.fresh("loss_sum", loss.dtype, ())
        sum_op = replace(_as_sum(leaf), results=(total, count), notes=without_times(leaf.notes))
        quotient = Op("aten.div", (total, count), (loss,))
        edit.insert(sum_op, before=leaf)
        edit.insert(
            replace(
                quotient,
                thread=leaf.thread,
                stream=leaf.stream,
                phase=leaf.phase,
                module=leaf.module,
                origin="shard",
            ),
            before=leaf,
        )
        edit.remove(leaf)
    return edit.commit() if means else graph


def _reduction(leaf: Op) -> Value:
    reduction = (
        leaf.operands[REDUCTION_POSITION] if len(leaf.operands) > REDUCTION_POSITION else MEAN
    )
    return leaf.attributes.get("reduction", reduction)


def _as_sum(leaf: Op) -> Op:
    if len(leaf.operands) > REDUCTION_POSITION:
        operands = (
            *leaf.operands[:REDUCTION_POSITION],
            SUM,
            *leaf.operands[REDUCTION_POSITION + 1 :],
        )
        return replace(leaf, operands=operands)
    return replace(leaf, attributes={**leaf.attributes, "reduction": SUM})
