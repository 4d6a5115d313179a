"""A case of a sweep as the graph of its call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from costmodels.benchmarks.bench import Bench, Case
from costmodels.families import sweeps
from irgraph.diagnostics import fail
from irgraph.ir.graph import Graph


def case_of(row: Mapping[str, Any]) -> Case:
    """Return the case of a row of measurements. Raises ``KeyError`` if the row lacks a field."""
    return Case(*(row[name] for name in ("family", "op", "dtype", "sizes", "indices")))


def captured(row: Mapping[str, Any]) -> Graph:
    """Return the call that a row of measurements timed, captured on torch's meta device.

    Raises ``IrgraphError`` (exit code 2) if the row is not a case of a sweep.
    """
    import torch

    from irgraph.capture.emulate.patches import emulate_cuda
    from irgraph.capture.live import capture

    try:
        case = case_of(row)
        with emulate_cuda("meta"):  # the forward pass of a gradient runs here
            call = sweeps()[case.family].ops[case.op](Bench(torch, "meta", case))
        graph = capture(call, name="case").graph
    except (LookupError, RuntimeError, TypeError, ValueError) as error:
        message = f"no case of a sweep: {row['key']!r} ({type(error).__name__})"
        raise fail(message, exit_code=2) from None
    if not case.op.endswith("_pinned"):
        return graph
    return replace(graph, settings={**graph.settings, "pinned": True})
