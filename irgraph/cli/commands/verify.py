"""``irgraph verify``: the rules of the IR."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from irgraph.cli.common import ModelArgument, print_error

if TYPE_CHECKING:
    from irgraph.ir.graph import Graph
    from irgraph.ops.rules.finding import Finding

PANEL = "models"


def verify(model: ModelArgument) -> None:
    """Check a model against every rule of the IR, and its types with torch; list all findings."""
    from irgraph.api import read_graph
    from irgraph.ops.rules.calls import unknown
    from irgraph.ops.verify import describe
    from irgraph.ops.verify import verify as find

    graph = read_graph(model)
    for warning in unknown(graph):
        hint = f"; {warning.hint}" if warning.hint else ""
        print_error(f"warning: {describe(graph, warning)}{hint}")
    findings = [*find(graph), *_unknown_sheets(graph)]
    findings = findings or _type_mismatches(graph)
    for finding in findings:
        print_error(describe(graph, finding))
    count = sum(1 for _ in graph.walk())
    print_error(
        f"{model}: {count} ops, {len(findings) or 'no'} finding{'s' * (len(findings) != 1)}"
    )
    raise typer.Exit(1 if findings else 0)


def _type_mismatches(graph: Graph) -> list[Finding]:
    """Return findings on types that differ from torch's, none if torch is not installed."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        return []
    from irgraph.execute.type_check import type_findings

    return list(type_findings(graph))


def _unknown_sheets(graph: Graph) -> Iterator[Finding]:
    """Yield a finding for each device whose card is unknown."""
    from irgraph.backend import backend
    from irgraph.diagnostics import IrgraphError
    from irgraph.ops.rules.finding import Finding

    for device in graph.devices:
        try:
            backend().device(device.sheet)
        except IrgraphError as error:
            yield Finding("devices", f"@{device.name}: {error.diagnostics[0].message}")
