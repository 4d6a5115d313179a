"""Softmax and its gradient, over the last axis."""

from __future__ import annotations

from collections.abc import Mapping

from costmodels.benchmarks.sweep import MATRIX, Function, Sweep, backward, forward
from costmodels.formulas.elements import ROOFLINE, streaming
from costmodels.formulas.intervals import UNTRACED
from costmodels.formulas.machine import Machine, Rule, first_tensor, shape_text, traffic, work
from costmodels.learnable.family import LearnedFamily, Query
from costmodels.learnable.launch import borrowed
from costmodels.learnable.rowwise import SETTINGS, SIZES, rowwise, shape
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.points.many import most, whole

SOURCE = "roofline (paper, III-B-1b) over one pass; trained for softmax forward in f32"


def _softmax(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price one pass: the input (and for the gradient both inputs) read, the result written."""
    target = first_tensor(op)
    if target is None:
        return None
    moved = traffic(*op.inputs, *op.outputs)
    name = f"{op.base} {shape_text(target)}"
    columns = whole(target.shape[-1]) if target.rank else 1
    rows = target.numel // most(columns, 1)
    learned = machine.ask("softmax", name, op=op.base, rows=rows, cols=columns, dtype=target.dtype)
    if learned:
        return (learned,)
    return (work("softmax", name, streaming(machine, moved), UNTRACED, ROOFLINE),)


NAMES = ("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data",
         "_masked_softmax", "_masked_softmax_backward", "_safe_softmax")  # fmt: skip

RULES: dict[str, Rule] = {f"aten.{name}": _softmax for name in NAMES}

_FUNCTIONS: Mapping[str, Function] = {
    "softmax": lambda t, x: t.softmax(x, -1),
    "log_softmax": lambda t, x: t.log_softmax(x, -1),
}

SWEEPS = {"softmax": Sweep({**forward(_FUNCTIONS), **backward(_FUNCTIONS)}, MATRIX)}


def _query(asked: Mapping[str, float | str]) -> Query | None:
    """Return softmax forward over the last axis; nothing else was measured."""
    return Query("softmax", shape(asked)) if asked["op"] == "_softmax" else None


LEARNED = LearnedFamily(
    "softmax", ("softmax",), SIZES, rowwise, _query, SETTINGS, borrowed, similar="elementwise"
)
