"""Rules that every graph must obey; all findings are reported, not only the first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence

from irgraph.facts import facts_of, lasting_facts
from irgraph.ir.graph import OPERANDS, Graph
from irgraph.ir.op import Op
from irgraph.ops.rules import calls, definitions, tensors
from irgraph.ops.rules.finding import Finding


class VerifyError(ValueError):
    """A graph breaks rules; ``findings`` has all violations."""

    def __init__(
        self,
        graph: Graph,
        findings: list[Finding],
    ) -> None:
        self.graph = graph
        self.findings = findings
        lines = [describe(graph, finding) for finding in findings]
        super().__init__("\n".join(lines))


def describe(graph: Graph, finding: Finding) -> str:
    """Return a finding as one line with its location in the text and in the capture."""
    source = graph.source or graph.name
    op = finding.op
    if op is None:
        return f"{source}: {finding.message} [{finding.rule}]"
    line = f":{op.line}" if op.line else ""
    origin = f" (from {op.origin})" if op.origin else ""
    return f"{source}{line}: {op.name}: {finding.message}{origin} [{finding.rule}]"


def verify(graph: Graph) -> list[Finding]:
    """Return all findings about a graph, in launch order; empty if it is valid.

    Rules of single ops skip ops that were valid in a graph of the same kind before. Rules that do
    not depend on sizes skip the resized forms of these ops as well.
    """
    declarations = (graph.devices, graph.streams, graph.schemas, OPERANDS in graph.settings)
    kind = _token((*declarations, tuple(graph.dims.items())))
    kind_at_any_size = _token(declarations)
    ops = [op for op in graph.walk() if facts_of(op).get(VERIFIED_SLOT) is not kind]
    new_ops = [op for op in ops if lasting_facts(op).get(VERIFIED_SLOT) is not kind_at_any_size]
    findings: list[Finding] = []
    for graph_rule in RULES:
        findings += graph_rule(graph)
    for op_rule in RULES_OF_OPS:
        findings += op_rule(graph, ops if op_rule in RULES_OF_SIZES else new_ops)
    if not findings:
        for op in ops:
            facts_of(op)[VERIFIED_SLOT] = kind
        for op in new_ops:
            lasting_facts(op)[VERIFIED_SLOT] = kind_at_any_size
    return findings


VERIFIED_SLOT = "irgraph.ops.verify"
"""Slot of an op with the kind of graphs in which it was valid."""

MAX_GRAPH_KINDS = 64
"""Maximum number of kinds of graphs that are distinguished at a time."""

_KINDS: OrderedDict[Hashable, object] = OrderedDict()


def _token(declarations: Hashable) -> object:
    """Return the token of all graphs in which rules of single ops read equal declarations."""
    token = _KINDS.setdefault(declarations, object())
    if len(_KINDS) > MAX_GRAPH_KINDS:
        _KINDS.pop(next(iter(_KINDS)), None)
    return token


def check(graph: Graph) -> Graph:
    """Return the graph, or raise ``VerifyError`` with all findings."""
    findings = verify(graph)
    if findings:
        raise VerifyError(graph, findings)
    return graph


RULES: tuple[Callable[[Graph], Iterator[Finding]], ...] = (
    definitions.definitions,
    definitions.buffer_devices,
    definitions.unique_ops,
)
"""Every rule of whole graphs, in the order in which findings are reported."""

RULES_OF_OPS: tuple[Callable[[Graph, Sequence[Op]], Iterator[Finding]], ...] = (
    calls.writes,
    tensors.tensors,
    tensors.streams,
    calls.schemas,
    calls.foreign_ops,
    tensors.result_placement,
    tensors.overwritten_operands,
    calls.shapes,
    calls.tf32_types,
)
"""Every rule of single ops, in the order in which findings are reported."""

RULES_OF_SIZES = frozenset(
    (
        tensors.tensors,
        tensors.overwritten_operands,
        calls.shapes,
    )
)
"""Rules of single ops whose findings depend on sizes, strides or offsets."""
