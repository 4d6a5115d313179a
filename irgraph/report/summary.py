"""Summary of a model."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.table import Table

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op


def summarize(graph: Graph, depth: int = 1) -> dict[str, Any]:
    """Return counts of a graph as plain values for tables and JSON; bytes assume dense tensors."""
    names = Counter(op.name for op in _to_depth(graph.ops, depth))
    roles = Counter(d.role for d in graph.tensors)
    sizes: Counter[str] = Counter()
    for declared in graph.tensors:
        sizes[declared.role] += declared.tensor.nbytes
    return {
        "name": graph.name,
        "dims": dict(graph.dims),
        "settings": {key: str(value) for key, value in graph.settings.items()},
        "devices": {d.name: d.sheet for d in graph.devices},
        "tensors": {role: {"count": roles[role], "bytes": sizes[role]} for role in roles},
        "ops": {
            "all": sum(1 for _ in graph.walk()),
            "top_level": sum(1 for _ in graph.top_level()),
            "leaves": sum(1 for _ in graph.leaves()),
        },
        "threads": dict(Counter(op.thread for op in graph.top_level())),
        "phases": dict(Counter(op.phase for op in graph.top_level())),
        "by_name": dict(names.most_common()),
    }


def _to_depth(ops: tuple[Op, ...], depth: int) -> list[Op]:
    selected: list[Op] = []
    for op in ops:
        selected.append(op)
        if depth > 1:
            selected.extend(_to_depth(op.body, depth - 1))
    return selected


def summary_tables(summary: dict[str, Any]) -> list[Table]:
    """Return the summary as tables."""
    facts = Table(title=summary["name"], show_header=False, title_justify="left")
    facts.add_row("dimensions", _pairs(summary["dims"]) or "none")
    facts.add_row("devices", _pairs(summary["devices"]))
    for role, figures in summary["tensors"].items():
        facts.add_row(role, f"{figures['count']} tensors, {figures['bytes'] / 2**20:,.1f} MiB")
    counts = summary["ops"]
    facts.add_row("ops", ", ".join(f"{n} {kind.replace('_', '-')}" for kind, n in counts.items()))
    facts.add_row("threads", _pairs(summary["threads"]))
    facts.add_row("phases", _pairs(summary["phases"]))
    for key, value in summary["settings"].items():
        facts.add_row(key, value)
    ops = Table("op", "count", title="ops by name", title_justify="left")
    for name, count in summary["by_name"].items():
        ops.add_row(name, str(count))
    return [facts, ops]


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in values.items())
