"""The host of a step for which no host table is named: the only place that decides it.

The release of torch decides, on any card: a V100 machine of 2024 spends on an operation the time of
an H100 machine of 2025, which is half the time of V100 machines of 2021.
"""

from __future__ import annotations

import re
from dataclasses import replace

from irgraph.ir.graph import Graph, cached_per_graph
from irgraph.overheads.table import HostTable, load_host

DEFAULT_HOST = "default"
"""Name of the table of the step's release of torch; ``default@1.5x`` scales it."""

RECENT_TABLE = "h100-torch-2.11"
"""Table of torch 2, of the newest machine that was measured."""

TORCH_1_TABLE = "v100"
"""Table of torch 1, of machines of 2021 and 2022."""

MACHINE_STD = 0.53
"""Relative standard deviation of a machine's host times from the default table's.

From ten machines of 2022 to 2026 that made no default table (``irgraph evaluate hosts``).
"""

_NAME = re.compile(rf"{DEFAULT_HOST}(@.+)?")


def default_table(graph: Graph, software: str) -> str:
    """Return the name of the table for a step's release of torch.

    Args:
        graph: the step; one that was captured live names its release.
        software: the software profile of its prediction.
    """
    release = str(graph.settings.get("torch", ""))
    is_torch_1 = software.startswith("torch-1") or release.startswith(("0.", "1."))
    return TORCH_1_TABLE if is_torch_1 else RECENT_TABLE


def table_name(name: str, graph: Graph, software: str) -> str:
    """Return the name of a step's host table, with the default one resolved.

    A launch time of the machine is a better choice than its release of torch.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return name
    suffix = match[1] or ""
    is_by_launch = suffix.endswith("us")
    return (RECENT_TABLE if is_by_launch else default_table(graph, software)) + suffix


def host_of_step(name: str, graph: Graph, software: str) -> HostTable:
    """Return the host table of a step: of a name or a path, or the default one.

    Operations of an inference, a step of a forward pass only, record no graph for autograd.

    Raises ``IrgraphError`` as ``load_host`` does.
    """
    table = load_host(table_name(name, graph, software))
    if table.file.no_graph_ratio != 1.0 and is_inference(graph):
        table = table.without_graph()
    if _NAME.fullmatch(name) is None:
        return table
    # a launch time of the machine has brought a smaller deviation already
    return replace(table, machine_std=table.machine_std or MACHINE_STD, is_default=True, _cache={})


@cached_per_graph
def is_inference(graph: Graph) -> bool:
    """Return whether a step has neither a backward pass nor updates."""
    return all(op.phase == "forward" and not op.is_autograd for op in graph.walk())


def default_host_note(table: HostTable) -> str:
    """Return a warning about a default table, ``""`` if the user named the table."""
    if not table.is_default:
        return ""
    spread = "the interval includes how much machines differ"
    remedy = (
        "Give --host a table of your machine (irgraph overheads TRACE -o FILE makes one, irgraph "
        "hosts lists those that ship)"
    )
    if table.suffix.endswith("us"):
        source = f"host times are those of {table.name}, scaled by the time of a kernel's launch"
        return f"{source}; {spread}. {remedy}"
    return (
        f"no host is named: host times are those of {table.name}, the default for this release of "
        f"torch on any card; {spread}. {remedy}, or the time of a kernel's launch there: "
        "default@4.9us"
    )
