"""What the measured DLRM program did that ``examples/dlrm.py``, fused, does not.

All of it is on record in the published traces and in the sequence of 115 operations of a step:
its inputs lay in pinned memory; one call looked up all tables' indices at once; and it marked its
parts with ``record_function``, which in PyTorch 1.x calls ``aten::zeros`` and ``aten::empty`` on
the host, profiled or not: a pair before each part, one ``aten::zeros`` at each label of the
optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from irgraph.ir.graph import Declared, Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import DeviceRef, Tensor

LOOKUP = "irgraph.batched_embedding"

PARTS: dict[str, Callable[[Op], bool]] = {
    "forward": lambda op: True,
    "bottom MLP": lambda op: op.module.startswith("bot_mlp"),
    "embedding lookup": lambda op: op.name == LOOKUP,
    "interaction": lambda op: op.name == "aten.cat",
    "top MLP": lambda op: op.module.startswith("top_mlp"),
    "loss": lambda op: op.name in ("aten.mse_loss", "aten.binary_cross_entropy"),
    "backward": lambda op: op.phase != "forward",
}
"""The labelled parts in order, each with the test for its first operation."""


def as_measured(graph: Graph) -> Graph:
    """Return a fused DLRM as the measured program ran it."""
    whole = _with_whole_indices(graph)
    ops = tuple(_with_labels(whole.ops))
    return replace(whole, ops=ops, settings={**graph.settings, "pinned": True})


def _with_whole_indices(graph: Graph) -> Graph:
    """Take out the calls that select each table's indices: they are parts of one tensor."""
    taken = {t.name for op in graph.ops if op.name == LOOKUP for t in op.inputs}
    selects = {
        id(op): op.outputs[0]
        for op in graph.ops
        if op.name == "aten.select" and op.outputs[0].name in taken
    }
    parts = tuple(Declared("state", tensor) for tensor in selects.values())
    rest = tuple(op for op in graph.ops if id(op) not in selects)
    return replace(graph, tensors=(*graph.tensors, *parts), ops=rest)


def _with_labels(ops: Sequence[Op]) -> list[Op]:
    calls: dict[int, list[str]] = {}
    for test in PARTS.values():
        first = next((op for op in ops if test(op)), None)
        if first is not None:
            calls.setdefault(id(first), []).extend(("aten.zeros", "aten.empty"))
    for op in ops:
        if op.name.startswith("Optimizer."):
            calls.setdefault(id(op), []).append("aten.zeros")
    return list(_interleaved(ops, calls))


def _interleaved(ops: Sequence[Op], calls: dict[int, list[str]]) -> Iterable[Op]:
    number = 0
    for op in ops:
        for name in calls.get(id(op), ()):
            number += 1
            yield _call(name, number, op)
        yield op


def _call(name: str, number: int, before: Op) -> Op:
    made = Tensor(f"label{number}", "f32", (1,), f"label{number}", device="cpu")
    return Op(
        name,
        results=(made,),
        attributes={"size": (1,), "device": DeviceRef("cpu")},
        thread=before.thread,
        phase=before.phase,
        origin="record_function",
    )
