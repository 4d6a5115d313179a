"""What others could tell of a backward that is made anew."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from irgraph.ir.effects import written_by
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor, overlap
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.remove import check_type


def check_swap(graph: Graph, gone: Collection[int], swap: tuple[Tensor, Tensor]) -> None:
    """Refuse to let a gradient share bytes with others where somebody could tell."""
    old, new = swap
    check_type(old, new, [])
    if any(t.buffer == old.buffer for t in graph.returned or ()):
        raise RefusedError(f"%{old.name} is returned, and would share its bytes with others")
    for buffer in (old.buffer, new.buffer):
        for _, leaf in graph.touching.get(buffer, ()):
            if id(leaf) not in gone and any(t.buffer == buffer for t in written_by(leaf)):
                reason = f"%{old.name} would share its bytes with others, and is written in place"
                raise RefusedError(reason, [(leaf, f"{leaf.name} writes it")])


def check_unwritten(
    graph: Graph, gone: Collection[int], span: range, saved: Collection[str], readers: Sequence[Op]
) -> None:
    """Refuse where what both passes read of the forward pass is written in between."""
    read = {t.name: t for op in readers for leaf in op.leaves() for t in leaf.inputs}
    for tensor in (t for t in read.values() if t.buffer in saved):
        for place, leaf in graph.touching.get(tensor.buffer, ()):
            written = any(overlap(t, tensor) for t in written_by(leaf))
            if written and place in span and id(leaf) not in gone:
                reason = f"%{tensor.name} is written before the backward pass reads it"
                raise RefusedError(reason, [(leaf, f"{leaf.name} writes it")])
