"""Functions over files and graphs: what the commands do, for programs.

Each imports what it needs when it is called, so that ``import irgraph`` stays quick.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from irgraph.text.diagnostics import Diagnostic, IrgraphError, Place, fail

if TYPE_CHECKING:
    from irgraph.capture.result import Capture
    from irgraph.execute import Comparison
    from irgraph.ir.graph import Graph
    from irgraph.ir.verify import Finding
    from irgraph.manager import Outcome
    from irgraph.prediction import Prediction
    from irgraph.schedule.accounting import Accounting


def parse(text: str, source: str = "model.ir") -> Graph:
    """Return the graph of a model's text, not yet verified.

    Raises ``IrgraphError`` with the place of an error.
    """
    from irgraph.text.parser import parse as parse_text

    return parse_text(text, source)


def print_graph(graph: Graph) -> str:
    """Return the canonical text of a graph."""
    from irgraph.text.printer import print_graph as to_text

    return to_text(graph)


def read_graph(path: str | Path) -> Graph:
    """Return the graph of a ``model.ir`` file (``-``: standard input), not yet verified.

    Raises ``IrgraphError`` with the place of an error; a trace given as a model is told so.
    """
    from irgraph.report.files import read_text

    return read_graph_text(read_text(path), str(path))


def read_graph_text(text: str, source: str) -> Graph:
    """Return the graph of a model's text; a trace given as a model is told so."""
    if text.lstrip()[:1] in ("{", "["):
        raise fail(f"this is {_json_kind(text)}", Place(source), hint=f"irgraph lower {source}")
    return parse(text, source)


def _json_kind(text: str) -> str:
    if '"traceEvents"' in text:
        return "a Kineto trace, not model.ir"
    if '"nodes"' in text and '"schema"' in text[:1000]:
        return "a PyTorch execution trace, not model.ir"
    return "JSON, not model.ir"


def load(path: str | Path) -> Graph:
    """Return the graph of a ``model.ir`` file, verified.

    Raises ``IrgraphError`` with the place of every finding.
    """
    from irgraph.report.files import read_text

    text = read_text(path)
    return verified(read_graph_text(text, str(path)), text)


def verified(graph: Graph, text: str = "") -> Graph:
    """Return the graph if it breaks no rule; else raise ``IrgraphError`` with all findings.

    ``text`` is what the graph was read from, to show the places in it.
    """
    from irgraph.ir.verify import verify

    findings = verify(graph)
    if not findings:
        return graph
    raise IrgraphError(
        [
            Diagnostic(
                f"{finding.op.name + ': ' if finding.op else ''}{finding.message}",
                _place_of(finding, graph, text),
                hint=finding.hint,
            )
            for finding in findings
        ]
    )


def _place_of(finding: Finding, graph: Graph, text: str) -> Place:
    """Return where a finding is shown: its op's line, else the first that has what it names."""
    source = graph.source or graph.name
    named = re.search(r"[%@$]\w+|(?<=').+(?=')", finding.message)
    word = named[0] if named else ""
    lines = text.splitlines()
    line = finding.op.line if finding.op else 0
    if not line and word:
        pattern = re.compile(rf"{re.escape(word)}(?!\w)")
        line = next((i for i, row in enumerate(lines, 1) if pattern.search(row)), 0)
    row = lines[line - 1] if 0 < line <= len(lines) else ""
    at = row.find(word) if word in row else len(row) - len(row.lstrip())
    return Place(source, text, line, at + 1, len(word) or len(row.strip()))


def save(graph: Graph, path: str | Path) -> None:
    """Write a graph as canonical ``model.ir``, whole or not at all."""
    from irgraph.report.files import write_atomic

    write_atomic(path, print_graph(graph))


def lower(
    path: str | Path,
    *,
    name: str | None = None,
    step: int | None = None,
    kineto: str | Path | None = None,
    dims: Mapping[str, int] | None = None,
) -> Capture:
    """Lower an execution trace, an ONNX model or an exported program; what it is, its content says.

    ``step`` picks one step of a trace's, the last complete one else; ``kineto`` is a Kineto trace
    of the same steps, for measured times; ``dims`` gives the sizes of dimensions that a model
    leaves open.

    Raises ``IrgraphError`` where the file cannot be used, or an option does not suit it.
    """
    from irgraph.capture.front_ends import lower_file

    return lower_file(path, name=name, step=step, kineto=kineto, dims=dims)


def capture(step: Callable[[], object], **options: Any) -> Capture:  # noqa: ANN401
    """Run a training step under the observer and lower it (``irgraph.capture.live.capture``)."""
    from irgraph.capture.live import capture as capture_live

    return capture_live(step, **options)


def rewrite(graph: Graph, pipeline: str, *, pass_path: Sequence[str] = ()) -> Outcome:
    """Apply passes, as in ``fuse-embedding(least=4), fuse-epilogue``, or the text of a script.

    A text that can be read as a pipeline of passes is one; any other is a script's statements, as
    in ``resize B = 4096``. The graph stays as it is.

    Raises ``IrgraphError`` where a pass is unknown, a script is wrong or a rewrite is illegal.
    """
    from irgraph.manage.stage import step_of
    from irgraph.manager import run_steps

    return run_steps(graph, [step_of(pipeline)], pass_path=tuple(pass_path))


def compare(before: Graph, after: Graph, **options: Any) -> Comparison:  # noqa: ANN401
    """Execute both graphs on the same inputs and compare what leaves the step.

    Options as of ``irgraph.execute.compare``: seed, dims, rows, limit.
    """
    from irgraph.execute import compare as run

    return run(before, after, **options)


def predict(
    graph: Graph,
    device: str | None = None,
    host: str = "v100",
    *,
    dims: Mapping[str, int] | None = None,
    mode: str = "corrected",
    software: str = "torch-2",
    accounting: Accounting | None = None,
    pinned: bool | None = None,
    indices: Sequence[str] = (),
    weights: Sequence[str] = (),
    measured: bool = True,
    ranks: int | str | None = None,
    fabric: str | None = None,
) -> Prediction:
    """Predict a step (``irgraph.prediction.predict``): step time, timeline and critical path.

    ``dims`` gives dimensions of the model other sizes first.
    """
    from irgraph.prediction import predict as run
    from irgraph.schedule.accounting import BLOCKING

    rules = accounting or BLOCKING
    return run(
        _with_dims(graph, dims or {}),
        device,
        host,
        mode=mode,
        software=software,
        accounting=rules,
        pinned=pinned,
        indices=indices,
        weights=weights,
        measured=measured,
        ranks=ranks,
        fabric=fabric,
    )


def _with_dims(graph: Graph, dims: Mapping[str, int]) -> Graph:
    if not dims:
        return graph
    from irgraph.ir.resize import with_dims
    from irgraph.text.diagnostics import near

    for name in dims:
        if name not in graph.dims:
            hint = f"its dimensions: {', '.join(graph.dims) or 'none'}"
            message = f"dims: the model has no dimension {name!r}{near(name, graph.dims)}"
            raise fail(message, hint=hint, exit_code=2)
    try:
        return with_dims(graph, dims)
    except ValueError as error:
        raise fail(f"dims: {error}", exit_code=2) from None
