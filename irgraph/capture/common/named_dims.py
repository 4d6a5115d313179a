"""Finds sizes that depend on a named dimension by comparing graphs at several sizes."""

from __future__ import annotations

from collections.abc import Callable

from irgraph.capture.common.batch_dimension import DifferentStructureError, with_batch
from irgraph.capture.common.symbolic import other_sizes
from irgraph.diagnostics import IrgraphError
from irgraph.ir.graph import Graph


def with_named_dim(
    graph: Graph, name: str, size: int, graph_at: Callable[[int], Graph]
) -> tuple[Graph, list[str]]:
    """Return a graph whose sizes that follow from a dimension are expressions, and notes.

    ``graph_at`` returns the graph at another size. If it fails, or its graph makes other calls,
    sizes stay plain and a note has the reason. A size of 1 stays plain, since torch treats axes of
    one element specially.
    """
    if size == 1:
        return graph, [f"sizes do not follow from {name}: it is 1"]
    try:
        graph_by_size = {other: graph_at(other) for other in other_sizes(size) if other != size}
        symbol = name if name.isascii() and name.isidentifier() else "B"
        return with_batch({size: graph, **graph_by_size}, size, symbol)
    except DifferentStructureError as error:
        reason = str(error)
    except IrgraphError as error:
        reason = error.diagnostics[0].message
    return graph, [f"sizes do not follow from {name}: at others, {reason}"]
