"""Softmax and its gradient, over the last axis."""

from __future__ import annotations

from costmodels.elements import ROOFLINE, streaming
from costmodels.machine import Machine, Rule, first_tensor, shape_text, traffic, work
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op

SOURCE = "roofline (paper, III-B-1b) over one pass; trained for softmax forward in f32"


def _softmax(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price one pass: the input (and for the gradient both inputs) read, the result written."""
    target = first_tensor(op)
    if target is None:
        return None
    moved = sum(map(traffic, (*op.inputs, *op.outputs)))
    name = f"{op.base} {shape_text(target)}"
    columns = int(target.shape[-1]) if target.rank else 1
    rows = target.numel // max(columns, 1)
    told = machine.ask("softmax", name, op=op.base, rows=rows, cols=columns, dtype=target.dtype)
    if told:
        return (told,)
    return (work("softmax", name, streaming(machine, moved), 0.4, ROOFLINE),)


NAMES = ("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data",
         "_masked_softmax", "_masked_softmax_backward", "_safe_softmax")  # fmt: skip

RULES: dict[str, Rule] = {f"aten.{name}": _softmax for name in NAMES}
