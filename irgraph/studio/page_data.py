"""Data of the page as plain records: names are data in them, and remain text on the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import irgraph
from irgraph import Diagnostic, Difference, Entry, Prediction
from irgraph.html import sections
from irgraph.ir.op import Op
from irgraph.pages.difference import changes
from irgraph.pages.slices import Slices
from irgraph.pages.timelines import add_path, add_timeline
from irgraph.report.structure import group_changes
from irgraph.studio.session import Attempt, Revision, Session

Record = dict[str, Any]


def state(session: Session) -> Record:
    """Return the present model: its ops, figures and timeline, and the edits that led to it."""
    step = session.step
    return {
        "ops": ops(step),
        "figures": figures(step.prediction, total=step.total if session.edits else None),
        "drawn": path_and_timeline(step.prediction),
        "done": [edit(revision) for revision in session.edits],
        "undone": [edit(revision) for revision in session.undone_edits],
        "warnings": warnings(step.prediction),
    }


def attempt(session: Session, result: Attempt) -> Record:
    """Return the effect of statements: the change and why it is legal, or why it is refused."""
    if result.step is None:
        problems = [problem(diagnostic) for diagnostic in result.problems]
        return {"legal": False, "wrong": result.is_invalid, "problems": problems}
    step, current = result.step, session.step
    change = session.difference(step)
    changed = step.graph is not current.graph
    return {
        "legal": True,
        "changed": changed,
        "entries": [entry(script_entry) for script_entry in step.entries if not script_entry.spare],
        "problems": [problem(diagnostic) for diagnostic in _remarks(step)],
        "figures": figures(step.prediction, change=change, total=step.total),
        "comparable": change is not None,
        "changes": changes(group_changes(change.changes), timed=True) if change else None,
        "marks": marks(current, change) if change else {},
        "drawn": path_and_timeline(step.prediction) if changed else None,
        "warnings": warnings(step.prediction),
    }


def ops(step: Revision) -> Record:
    """Return all ops in launch order, outer before inner, as columns.

    Times are microseconds: the device's work priced at an op, and the time of its calls on the
    critical path.
    """
    all_ops = list(step.graph.walk())
    lines = irgraph.print_graph(step.graph).splitlines()
    if step.graph.returned is not None:
        del lines[-1]
    lines = [line for line in lines if line.strip() not in ("}", "")][-len(all_ops) :]
    kernels = step.prediction.priced.kernels
    path: dict[Op, float] = {}
    for path_interval in step.prediction.path.intervals:
        if path_interval.op is not None:
            path[path_interval.op] = path.get(path_interval.op, 0.0) + path_interval.length
    return {
        "text": [line.strip().removesuffix(" {") for line in lines],
        "depth": [(len(line) - len(line.lstrip())) // 2 for line in lines],
        "device": [round(sum(k.time for k in kernels.get(op, ())), 4) for op in all_ops],
        "path": [round(path.get(op, 0.0), 4) for op in all_ops],
        "phase": [op.phase for op in all_ops],
        "module": [op.module for op in all_ops],
        "by": ["/".join(sorted({k.by for k in kernels.get(op, ())})) for op in all_ops],
    }


def figures(
    prediction: Prediction, *, change: Difference | None = None, total: Difference | None = None
) -> Record:
    """Return the step time with its interval, and its change, in microseconds; peaks in bytes.

    Args:
        prediction: of the model.
        change: from the model before the edit.
        total: from the model that the session began with.
    """
    shares: dict[str, float] = {}
    for kernel in prediction.kernels():
        shares[kernel.by] = shares.get(kernel.by, 0.0) + kernel.time
    total_time = sum(shares.values()) or 1.0
    return {
        "step": _span(prediction.step_time, prediction.interval),
        "change": _span(change.step_time_change, change.interval) if change else None,
        "total": _span(total.step_time_change, total.interval) if total else None,
        "memory": prediction.memory.peak,
        "memory_before": change.before.memory.peak if change else None,
        "provenance": [
            [name, time / total_time]
            for name, time in sorted(shares.items(), key=lambda item: -item[1])
        ],
        "unknown": sorted({op.name for op in prediction.priced.unknown}),
    }


def _span(value: float, interval: tuple[float, float]) -> Record:
    low, high = interval
    return {"value": value, "low": low, "high": high}


def path_and_timeline(prediction: Prediction) -> list[Record]:
    """Return the critical path and the timeline of a model, as reports draw them."""
    paths, lines = Slices(), Slices()
    add_path(paths, prediction.path)
    add_timeline(lines, prediction.timeline, prediction.path)
    return [
        sections.slices("path", "Critical path", paths.record(), tall=True),
        sections.slices("timeline", "Timeline", lines.record()),
    ]


def marks(step: Revision, change: Difference) -> dict[str, str]:
    """Return the changes of a model's ops: a kind of ``Change`` by their positions."""
    kinds: dict[str, str] = {}
    for op_change in change.changes:
        if op_change.before is None:
            continue
        inner = op_change.before.walk() if op_change.kind == "removed" else [op_change.before]
        for op in inner:
            kinds[str(step.numbers[op])] = op_change.kind
    return kinds


def entry(script_entry: Entry) -> Record:
    """Return the effect of one statement, and why it is legal."""
    return {
        "caller": script_entry.caller,
        "statement": str(script_entry.statement),
        "summary": script_entry.summary,
        "legal": _counted_reasons((*script_entry.legal, *script_entry.unproven)),
        "assumed": _counted_reasons(script_entry.assumptions),
    }


def edit(step: Revision) -> Record:
    """Return an applied edit: its text, and the step time after it."""
    return {"text": step.text, "step": step.prediction.step_time}


def problem(diagnostic: Diagnostic) -> Record:
    """Return a diagnostic: the message, its position, and the chain of reasons."""
    span = diagnostic.place
    is_in_script = span is not None and span.source == "script" and span.line > 0
    return {
        "severity": diagnostic.severity,
        "message": diagnostic.message,
        "hint": diagnostic.hint,
        "where": str(span) if span else "",
        "mark": [span.line, span.column, span.length] if span and is_in_script else None,
        "notes": [problem(note) for note in diagnostic.notes],
    }


def warnings(prediction: Prediction) -> list[str]:
    """Return the warnings about the figures, and the ops without a cost model."""
    unknown = Counter(op.name for op in prediction.priced.unknown)
    lines = [f"{name}: no cost model knows it ({n} times)" for name, n in unknown.items()]
    return [*prediction.warnings, *lines]


def _remarks(step: Revision) -> Iterable[Diagnostic]:
    yield from step.warnings
    for script_entry in step.entries:
        yield from script_entry.refused
        yield from (w for w in script_entry.warnings if not script_entry.spare)


def _counted_reasons(reasons: Sequence[str]) -> list[str]:
    """Return distinct reasons, each with the number of its occurrences."""
    return [
        reason + (f" ({times} times)" if times > 1 else "")
        for reason, times in Counter(reasons).items()
    ]
