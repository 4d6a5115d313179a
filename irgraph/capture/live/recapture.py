"""Compares a model at another batch size with its program at that size."""

from __future__ import annotations

from collections.abc import Iterator

from irgraph.capture.live.step import capture_file
from irgraph.diagnostics import fail
from irgraph.ir.compare import same_op
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.ranks import RANK, RANKS
from irgraph.ir.resize import with_dims


def compare_with_program(graph: Graph, target: str, batch: int) -> str:
    """Capture a model's program again at a batch size; return a difference of the resized model.

    Args:
        graph: the model, with the dimension ``B``.
        target: its program, ``FILE.py:NAME``.
        batch: the size to compare at.

    Returns:
        A sentence about the first difference, ``""`` if there is none: calls, operands, types and
        strides are compared individually.

    Raises:
        IrgraphError: the model has no dimension ``B``, or the program fails at that size.
    """
    if "B" not in graph.dims:
        hint = "a model that was captured with --no-symbolic has one size only"
        raise fail("the model has no dimension B to resize", hint=hint)
    device = str(graph.settings.get("captured_on", "meta"))
    pinned = graph.settings.get("pinned") is True
    rank = graph.settings.get(RANK)
    recaptured = capture_file(
        target,
        batch=batch,
        device=device,
        symbolic=False,
        pinned=pinned,
        ranks=None if rank is None else str(graph.settings[RANKS]),
        rank=int(str(rank or 0)),
    ).graph
    resized = with_dims(graph, {"B": batch})
    return next(_differences(resized, recaptured), "")


def _differences(resized: Graph, recaptured: Graph) -> Iterator[str]:
    """Yield a sentence for each difference; the first different call comes first."""
    for op, program_op in zip(resized.ops, recaptured.ops, strict=False):
        if not same_op(op, program_op):
            op, program_op = _innermost(op, program_op)
            yield f"the program calls {_describe(program_op)}, the model {_describe(op)}"
    if len(resized.ops) != len(recaptured.ops):
        yield f"the program makes {len(recaptured.ops)} calls, the model {len(resized.ops)}"
    for a, b in zip(resized.tensors, recaptured.tensors, strict=False):
        if (a.role, a.tensor) != (b.role, b.tensor):
            yield f"the program starts from {b.tensor}, the model from {a.tensor}"
    if resized.returned != recaptured.returned:
        yield "the program returns other tensors than the model"


def _innermost(op: Op, program_op: Op) -> tuple[Op, Op]:
    """Return the innermost first pair of different calls, which may be the given pair."""
    for a, b in zip(op.body, program_op.body, strict=False):
        if not same_op(a, b):
            return _innermost(a, b)
    return op, program_op


def _describe(op: Op) -> str:
    outputs = ", ".join(
        f"%{t.name} [{', '.join(str(int(n)) for n in t.shape)}]" for t in op.outputs
    )
    return f"{op.name} ({op.origin})" + (f" : {outputs}" if outputs else "")
