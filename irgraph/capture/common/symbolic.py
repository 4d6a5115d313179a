"""Finds the batch dimension of a captured step by capturing it at other batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from irgraph.capture.common.batch_dimension import DifferentStructureError, with_batch
from irgraph.capture.common.result import Capture
from irgraph.diagnostics import IrgraphError
from irgraph.ir.graph import Graph
from irgraph.ir.resize import with_dims

ONE_DIFFERS = (
    "at batch size 1 torch makes other calls than at {size}: the graph shows those of {size}"
)


def other_sizes(batch: int) -> tuple[int, ...]:
    """Return further batch sizes to compare with: smaller ones if ``batch`` is at least 16.

    Size 1 is never among them, since torch treats axes of one element specially.
    """
    if batch == 1:
        return (2, 4, 6)
    return (batch // 2, batch // 4) if batch >= 16 else (2 * batch, 3 * batch)


def with_symbolic_batch(
    captured: Capture,
    batch: int,
    capture_at: Callable[[int], Capture],
    sizes: Sequence[int],
    repeat: Graph | None = None,
) -> Capture:
    """Return a capture with the sizes that follow from its batch size as expressions in ``B``.

    ``capture_at`` captures the step at another size. If it fails, or its graph makes other calls,
    sizes stay plain and a note has the reason. A batch of 1 is fitted at the other sizes and then
    set. Numbers that differ in ``repeat``, a later step at ``batch``, do not depend on the batch.
    Without ``repeat`` the step is captured at ``batch`` again if numbers do not fit.
    """
    try:
        graphs = {size: capture_at(size).graph for size in sizes if size != batch}
        if batch != 1:
            graphs = {batch: captured.graph, **graphs}
            graph, misfits = with_batch(graphs, batch)
            if repeat is None and misfits:
                repeat = capture_at(batch).graph
            if repeat is not None:
                graph, misfits = _without_counters(graphs, batch, repeat)
        else:
            graph, misfits = _fit_other_sizes(captured.graph, graphs)
    except DifferentStructureError as error:
        return _without_batch(captured, f"the calls depend on it: {error}")
    except IrgraphError as error:
        return _without_batch(captured, f"other sizes fail: {error.diagnostics[0].message}")
    return replace(captured, graph=graph, notes=(*captured.notes, *misfits))


def _without_counters(
    graphs: dict[int, Graph], batch: int, repeat: Graph
) -> tuple[Graph, list[str]]:
    """Fit numbers again with another capture at ``batch``, if that makes the same calls."""
    try:
        return with_batch(graphs, batch, repeat=repeat)
    except DifferentStructureError:
        return with_batch(graphs, batch)


def _fit_other_sizes(size_one: Graph, graphs: dict[int, Graph]) -> tuple[Graph, list[str]]:
    """Fit the captures at sizes above 1 and return the result at size 1."""
    size = min(graphs)
    graph, misfits = with_batch(graphs, size)
    if not graph.dims.keys() - size_one.dims.keys():
        return size_one, misfits
    if [op.name for op in graph.walk()] != [op.name for op in size_one.walk()]:
        misfits = [*misfits, ONE_DIFFERS.format(size=size)]
    return with_dims(graph, {"B": 1}), misfits


def _without_batch(captured: Capture, reason: str) -> Capture:
    return replace(captured, notes=(*captured.notes, f"no batch dimension: {reason}"))
