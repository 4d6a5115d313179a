"""Operations of the measured programs that the examples do not have.

For ``examples/dlrm.py``, fused, all of them are recorded in the published traces and in the
sequence of 115 operations of a step. Its inputs were in pinned memory. One call looked up all
tables' indices. ``aten::index`` and its gradient copied indices from the host themselves (two
copies inside each in the trace of August 2021, and five copying ``aten::to`` per step in the counts
of February 2022), of a slice of all rows, whose gradient is filled and copied. There was no
``lift_fresh``. The program marked its parts with ``record_function``, which in PyTorch 1.x calls
``aten::zeros`` and ``aten::empty`` on the host, profiled or not: a pair before each part, one
``aten::zeros`` at each label of the optimizer. For the image classifiers the source is the measured
program itself.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from irgraph.ir.edit import map_tensors
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
"""Test for the first operation of each labelled part, in order."""


WAITS: dict[str, Callable[[Op], bool]] = {
    "loss": lambda op: op.name == "aten.cross_entropy_loss",
    "update": lambda op: op.name.startswith("Optimizer.step"),
}
"""Test for the operation after each wait for the device in a benchmarked classifier."""


def as_measured(graph: Graph) -> Graph:
    """Return a fused DLRM as the measured program ran it."""
    without_selects = _without_index_selects(graph)
    ops = tuple(_with_labels(list(_index_from_host(without_selects.ops))))
    return replace(without_selects, ops=ops, settings={**graph.settings, "pinned": True})


def _without_index_selects(graph: Graph) -> Graph:
    """Return a graph without the selections of each table's indices, which become its state."""
    lookup_inputs = {t.name for op in graph.ops if op.name == LOOKUP for t in op.inputs}
    selects = {
        op: op.outputs[0]
        for op in graph.ops
        if op.name == "aten.select" and op.outputs[0].name in lookup_inputs
    }
    parts = tuple(Declared("state", tensor) for tensor in selects.values())
    rest = tuple(op for op in graph.ops if op not in selects)
    return replace(graph, tensors=(*graph.tensors, *parts), ops=rest)


def _index_from_host(ops: Sequence[Op]) -> Iterator[Op]:
    """Yield ops with ``aten.index`` and its gradient on a slice of all rows, indices on the host.

    ``lift_fresh`` is removed: only newer releases have it.
    """
    (index,) = (op for op in ops if op.name == "aten.index")
    hosts = _host_sources(ops, {t.name for t in index.inputs})
    for op in ops:
        if op.name == "aten.lift_fresh" or (op.outputs and op.outputs[0].name in hosts):
            continue
        if op is index:
            yield from _slice_and_index(op, hosts)
        elif op.name == "autograd.IndexBackward0":
            yield from _slice_gradient(op)
        else:
            yield op


def _host_sources(ops: Iterable[Op], names: Container[str]) -> dict[str, Tensor]:
    """Return the host tensors that are copied to device tensors of these names, by name."""
    copies = (op for op in ops if op.name == "aten.to" and op.outputs)
    return {op.outputs[0].name: op.inputs[0] for op in copies if op.outputs[0].name in names}


def _slice_and_index(index: Op, hosts: Mapping[str, Tensor]) -> Iterator[Op]:
    source = index.inputs[0]
    rows = replace(source, name="all_rows")
    yield Op("aten.slice", (source,), (rows,), {"dim": 0}, origin=index.origin)
    replacements = {source.name: rows, **hosts}
    yield map_tensors(index, lambda t: replacements.get(t.name, t))


def _slice_gradient(node: Op) -> Iterator[Op]:
    """Yield the gradient of an index, with its indices on the host, and of the slice."""
    index_put = node.body[-1]
    result = index_put.inputs[0]
    inner = replace(result, name="index_gradient", buffer="index_gradient")
    hosts = _host_sources(node.body, {t.name for t in index_put.inputs})
    body = (op for op in node.body if not (op.outputs and op.outputs[0].name in hosts))
    replacements = {result.name: inner, **hosts}
    yield map_tensors(replace(node, body=tuple(body)), lambda t: replacements.get(t.name, t))
    sizes = {"input_sizes": result.shape, "dim": 0, "start": 0, "end": result.shape[0], "step": 1}
    call = replace(
        node,
        name="aten.slice_backward",
        operands=(inner,),
        results=(result,),
        attributes=sizes,
        body=(),
    )
    yield replace(node, name="autograd.SliceBackward0", operands=(inner,), body=(call,))


def _with_labels(ops: Sequence[Op]) -> list[Op]:
    calls: dict[Op, list[str]] = {}
    for test in PARTS.values():
        first = next((op for op in ops if test(op)), None)
        if first is not None:
            calls.setdefault(first, []).extend(("aten.zeros", "aten.empty"))
    for op in ops:
        if op.name.startswith("Optimizer."):
            calls.setdefault(op, []).append("aten.zeros")
    return list(_insert_calls(ops, calls))


def _insert_calls(ops: Sequence[Op], calls: dict[Op, list[str]]) -> Iterable[Op]:
    number = 0
    for op in ops:
        for name in calls.get(op, ()):
            number += 1
            yield _call(name, number, op)
        yield op


def _call(name: str, number: int, next_op: Op) -> Op:
    result = Tensor(f"label{number}", "f32", (1,), f"label{number}", device="cpu")
    return Op(
        name,
        results=(result,),
        attributes={"size": (1,), "device": DeviceRef("cpu")},
        thread=next_op.thread,
        phase=next_op.phase,
        origin="record_function",
    )


def as_benchmarked(graph: Graph) -> Graph:
    """Return an image classifier as the measured program (``convnet-benchmark-py``) timed it.

    Images and labels were on the device before the step. Events around forward, around loss and
    backward, and around the update were read after a wait for the device; gradients were zeroed
    outside of them. (The published calls agree: no ``aten::to``; Inception-v3's auxiliary head ran
    forward, according to 96 convolutions, and not backward, according to 94.)
    """
    copies = {op.outputs[0].name: op for op in graph.ops if _is_upload(op)}
    upload_ids = set(copies.values())
    remaining = [op for op in graph.ops if op not in upload_ids and not _is_zero_grad(op)]
    hosts = {tensor.name for op in copies.values() for tensor in op.inputs}
    inputs = (Declared("input", op.outputs[0]) for op in copies.values())
    tensors = (*(t for t in graph.tensors if t.tensor.name not in hosts), *inputs)
    return replace(graph, tensors=tensors, ops=tuple(_with_syncs(remaining)))


def _is_upload(op: Op) -> bool:
    return op.name == "aten.to" and op.inputs[0].device == "cpu" != op.outputs[0].device


def _is_zero_grad(op: Op) -> bool:
    return op.name.startswith("Optimizer.zero_grad")


def _with_syncs(ops: Sequence[Op]) -> Iterable[Op]:
    """Yield ops with waits for the device before the loss, before the update and at the end."""
    for op in ops:
        yield from (Op("sync.device", origin=part) for part, test in WAITS.items() if test(op))
        yield op
    yield Op("sync.device", origin="end")
