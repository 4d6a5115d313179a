"""Kernels that torch's compiler, Inductor, generates: several ops in one pass over memory."""

from __future__ import annotations

from collections.abc import Iterator

from costmodels.formulas.elements import streaming
from costmodels.formulas.intervals import UNTRACED
from costmodels.formulas.machine import Machine, Rule, traffic, work
from irgraph.ir.cost import Kernel
from irgraph.ir.effects import is_view
from irgraph.ir.op import Op

SOURCE = (
    "bytes that the fused ops take from outside and leave, at the memory's bandwidth, plus the "
    "launch floor; which ops share a kernel is Inductor's own decision; nothing was measured"
)
GATHERS = frozenset({
    "embedding", "index", "index_select", "gather", "take", "slice", "select", "_unsafe_index",
})  # fmt: skip
"""Ops that read only as many elements of their first operand as they return."""


def _kernel(op: Op, machine: Machine) -> tuple[Kernel, ...]:
    """Price generated kernels: intermediate results of their ops remain in registers.

    Further launches of the same ops (a reduction along another axis) read the largest operand
    again.
    """
    result_buffers = {
        t.buffer: t for t in sorted(op.outputs, key=traffic)
    }  # views of a result count once
    first_bytes = sum(_bytes_read(op)) + traffic(*result_buffers.values())
    first_bytes += traffic(*(t for t in op.inputs if t.name in op.written))
    count = int(str(op.attributes.get("launches", 1)))
    pass_bytes = max((traffic(t) for t in op.inputs), default=0)
    names = [leaf.base for leaf in op.leaves() if not is_view(leaf)]
    name = f"{len(names)} fused ops: {', '.join(dict.fromkeys(names))}"
    return tuple(
        work("compiled", name, streaming(machine, nbytes), UNTRACED, SOURCE)
        for nbytes in (first_bytes, *[pass_bytes] * (count - 1))
    )


def _bytes_read(op: Op) -> Iterator[int]:
    """Yield the number of bytes to read of each operand."""
    leaves = list(op.leaves())
    for tensor in op.inputs:
        readers = [leaf for leaf in leaves if any(t.name == tensor.name for t in leaf.inputs)]
        lookup_bytes = sum(
            traffic(*leaf.outputs) for leaf in readers if _looks_up(leaf, tensor.name)
        )
        if readers and all(_looks_up(leaf, tensor.name) for leaf in readers):
            yield min(lookup_bytes, traffic(tensor))
        else:
            yield traffic(tensor)


def _looks_up(leaf: Op, name: str) -> bool:
    return leaf.base in GATHERS and leaf.inputs[0].name == name


RULES: dict[str, Rule] = {"inductor.kernel": _kernel}
