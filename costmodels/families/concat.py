"""Joining tensors along an axis, and repeating them."""

from __future__ import annotations

from costmodels.machine import SMALL, Machine, Rule, shape_text, work
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op

SHARE = 0.79
"""Share of DRAM bandwidth of ``CatArrayBatchedCopy`` (the paper's program, concat model)."""

START = 1.0
"""Microseconds beside the launch floor: pointers and sizes of the parts are fetched first."""

FORMULA = "2 x bytes / (0.79 DRAM bandwidth) (paper, III-B-1b; its program's constant)"


def _cat(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    if not op.outputs:
        return None
    result = op.outputs[0]
    time = machine.stream(2 * result.nbytes, SHARE) + (0 if machine.paper else SMALL + START)
    return (work("concat", f"cat {shape_text(result)}", time, 0.2, FORMULA),)


NAMES = ("cat", "concat", "concatenate", "stack", "_cat", "hstack", "vstack", "repeat", "tile")

RULES: dict[str, Rule] = {f"aten.{name}": _cat for name in NAMES}
