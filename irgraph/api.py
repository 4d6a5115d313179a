"""Functions of the library's face that join several rooms; ``import irgraph`` lists them all.

Each imports its dependencies when it is called, so that ``import irgraph`` stays quick.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from irgraph import gc_pause
from irgraph.diagnostics import Diagnostic, IrgraphError, SourceSpan, fail

if TYPE_CHECKING:
    from irgraph.analyze import Analysis
    from irgraph.backend import DeviceFacts
    from irgraph.capture.kineto.events.tree import Tree
    from irgraph.ir.graph import Graph
    from irgraph.language import Pass, Script
    from irgraph.language.clauses import Call
    from irgraph.manage.space import Instance
    from irgraph.manage.stage import Outcome, Stage
    from irgraph.manage.watch import Watcher
    from irgraph.ops.rules.finding import Finding
    from irgraph.overheads import HostTable
    from irgraph.predict.options import PredictOptions
    from irgraph.replay.replay import Replayed


def read_graph(path: str | Path) -> Graph:
    """Return the graph of a ``model.ir`` file (``-``: standard input), not yet verified.

    Raises ``IrgraphError`` with the place of an error; for a trace the hint is how to lower it.
    """
    return read_graph_text(_model_text(path), str(path))


def _model_text(path: str | Path) -> str:
    """Return a model's text; the error for another tool's file has the command to lower it."""
    from irgraph.files import read_text

    try:
        return read_text(path)
    except IrgraphError:
        kind = _kind_of(path)
        if not kind:
            raise
    raise fail(f"this is {kind}, not model.ir", SourceSpan(str(path)), hint=f"irgraph lower {path}")


def _kind_of(path: str | Path) -> str:
    """Return the kind of a file with its article, ``""`` if no front end recognises it."""
    from irgraph.capture.common.source import Source
    from irgraph.capture.lower import front_ends

    if not Path(path).is_file():
        return ""
    with Source(path) as source:
        return next(
            (front_end.name for front_end in front_ends() if front_end.recognises(source)), ""
        )


def read_graph_text(text: str, source: str) -> Graph:
    """Return the graph of a model's text; errors for programs and traces have the command."""
    from irgraph.text import parse

    if Path(source).suffix == ".py":
        hint = f"irgraph capture {source} -o model.ir"
        raise fail("this is a Python program, not model.ir", SourceSpan(source), hint=hint)
    if text.lstrip()[:1] in ("{", "["):
        raise fail(
            f"this is {_json_kind(text)}", SourceSpan(source), hint=f"irgraph lower {source}"
        )
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
    text = _model_text(path)
    return verified(read_graph_text(text, str(path)), text)


def load_typed(path: str | Path) -> tuple[Graph, bool]:
    """Return the graph of a file, verified, and whether torch verified its types.

    Raises ``IrgraphError`` with the place of every finding.
    """
    text = _model_text(path)
    graph = verified(read_graph_text(text, str(path)), text)
    return graph, verify_types(graph, text)


def verify_types(graph: Graph, text: str) -> bool:
    """Return whether torch verified the types of a graph, once for each text; not if it is missing.

    Raises ``IrgraphError`` with the place of every finding.
    """
    from irgraph.execute.types.cache import cached_type_findings, can_check_types

    if not can_check_types():
        return False
    findings = cached_type_findings(graph, text)
    if findings:
        raise _findings_error(findings, graph, text)
    return True


def verified(graph: Graph, text: str = "") -> Graph:
    """Return the graph if it breaks no rule; else raise ``IrgraphError`` with all findings.

    ``text`` is the graph's source text, in which findings are located.
    """
    from irgraph.ops.verify import verify

    findings = verify(graph)
    if not findings:
        for step in graph.rarer:  # its lines are numbered from its own first one
            verified(step)
        return graph
    raise _findings_error(findings, graph, text)


def _findings_error(findings: Sequence[Finding], graph: Graph, text: str) -> IrgraphError:
    return IrgraphError(
        [
            Diagnostic(
                f"{finding.op.name + ': ' if finding.op else ''}{finding.message}",
                _span_of(finding, graph, text),
                hint=finding.hint,
            )
            for finding in findings
        ]
    )


def _span_of(finding: Finding, graph: Graph, text: str) -> SourceSpan:
    """Return the span of a finding: its op's line, or else the first line with its quoted name."""
    source = graph.source or graph.name
    quoted = re.search(r"[%@$]\w+|(?<=').+(?=')", finding.message)
    word = quoted[0] if quoted else ""
    lines = text.splitlines()
    line = finding.op.line if finding.op else 0
    if not line and word:
        pattern = re.compile(rf"{re.escape(word)}(?!\w)")
        line = next((i for i, row in enumerate(lines, 1) if pattern.search(row)), 0)
    row = lines[line - 1] if 0 < line <= len(lines) else ""
    column = row.find(word) if word in row else len(row) - len(row.lstrip())
    return SourceSpan(source, text, line, column + 1, len(word) or len(row.strip()))


def save(graph: Graph, path: str | Path) -> None:
    """Write a graph as canonical ``model.ir``, whole or not at all."""
    from irgraph.files import write_atomic
    from irgraph.text import print_graph

    write_atomic(path, print_graph(graph))


def rewrite(
    graph: Graph,
    pipeline: str | Sequence[str | Call | Instance],
    *,
    device: str | PredictOptions | None = None,
    pass_path: Sequence[str] = (),
    watchers: Sequence[Watcher] = (),
) -> Outcome:
    """Apply a pipeline of passes; the graph itself is unchanged.

    Args:
        graph: the step.
        pipeline: calls of passes, as in ``fuse-embedding(least=4), fuse-epilogue``, or a list of
            calls (texts, instances of a ``Space``). Statements are for ``run_script``.
        device: the device for times in passes (``op.time``), or options with a device.
        pass_path: further folders of passes.
        watchers: objects that see each step of the pipeline, and may skip it.

    Raises:
        IrgraphError: a pass is unknown (exit code 2) or wrong (4), or a rewrite is illegal (1).
    """
    from irgraph.manage.stage import PipelineStep, stages

    text = pipeline if isinstance(pipeline, str) else ", ".join(map(str, pipeline))
    try:
        pipeline_stages = stages([PipelineStep("pass", text)])
    except IrgraphError as error:
        first, *other_diagnostics = error.diagnostics
        hint = first.hint or "statements, as in 'resize B = 4096', are for run_script"
        raise IrgraphError(
            (replace(first, hint=hint), *other_diagnostics), error.exit_code
        ) from None
    return _apply(graph, pipeline_stages, device, pass_path, watchers)


def run_script(
    graph: Graph,
    script: str | Script,
    *,
    device: str | PredictOptions | None = None,
    pass_path: Sequence[str] = (),
    watchers: Sequence[Watcher] = (),
) -> Outcome:
    """Run the statements of a script, as in ``resize B = 4096``; the graph itself is unchanged.

    Args:
        graph: the step.
        script: the script's text, or a script object.
        device: the device for times in the script (``op.time``), or options with a device.
        pass_path: further folders of passes.
        watchers: objects that see the model before and after.

    Raises:
        IrgraphError: the script is wrong (exit code 4), or a change is illegal or an ``expect``
            fails (1).
    """
    from irgraph.manage.stage import PipelineStep, stages

    script_stages = stages([PipelineStep("text", str(script))])
    return _apply(graph, script_stages, device, pass_path, watchers)


def _apply(
    graph: Graph,
    pipeline: Sequence[Stage],
    device: str | PredictOptions | None,
    pass_path: Sequence[str],
    watchers: Sequence[Watcher],
) -> Outcome:
    from irgraph.ir.graph import check_graph
    from irgraph.manage.run import run_stages

    check_graph(graph)
    pricer = None
    if device is not None:
        from irgraph.predict.target import target

        pricer = target(device)
    folders = tuple(pass_path)
    with gc_pause.gc_paused():
        return run_stages(graph, pipeline, pass_path=folders, pricer=pricer, watchers=watchers)


def load_pass(name: str, pass_path: Sequence[str] = ()) -> Pass:
    """Return a pass of the library, or of further folders.

    Raises ``IrgraphError`` if it is missing or invalid.
    """
    from irgraph.language import load_pass as load_from

    return load_from(name, pass_path)


def passes(pass_path: Sequence[str] = ()) -> list[Pass]:
    """Return the passes of the library and of further folders, by name."""
    import passes as library

    return [load_pass(name, pass_path) for name in library.names(pass_path)]


def devices() -> list[DeviceFacts]:
    """Return the devices that ship, by name."""
    from irgraph.backend import backend

    return list(backend().devices())


def device(name: str) -> DeviceFacts:
    """Return a device by its name or one of its aliases, or from the path of a sheet.

    Raises ``IrgraphError`` (exit code 2) if it does not exist.
    """
    from irgraph.backend import backend

    return backend().device(name)


def hosts() -> list[HostTable]:
    """Return the host tables that ship, by name."""
    from irgraph.overheads import list_hosts, load_host

    return [load_host(name) for name in list_hosts()]


WARM = """model "warm" { format = 1  dims = {B = 64} }

device @gpu0 "v100"
input %x : f32[B, 64] in $x
param %w : f32[64, 64] in $w
param %c : f32[64] in $c

%y = aten.addmm(%c, %x, %w) : f32[B, 64] in $y
%z = aten.relu(%y) : f32[B, 64] in $z
"""
"""A step whose prediction and rewrite import every module and table that those need."""


def warm_up(
    devices: Sequence[str] = ("v100",), hosts: Sequence[str] = ("default",), *, passes: bool = True
) -> None:
    """Load the modules, sheets and models that predictions and rewrites load on first use.

    For services and searches whose first answer should be as fast as later ones.

    Args:
        devices: names of devices, whose sheets and trained models are read.
        hosts: names of hosts, whose tables are read.
        passes: whether grammars, passes and torch, if it is installed, are read as well: rewrites
            derive backward passes with torch.

    Raises:
        IrgraphError: a device or host does not exist (exit code 2).
    """
    from irgraph.backend import backend
    from irgraph.predict.variants import predict_variants
    from irgraph.text import parse

    load_all = getattr(backend(), "warm_up", None)
    if load_all is not None:
        load_all(devices)
    graph = parse(WARM)
    if passes:
        _warm_passes(graph)
    sizes = [{"B": 32}, {"B": 4096}]
    for host in hosts:
        predict_variants(graph, devices, sizes, host=host)


def _warm_passes(graph: Graph) -> None:
    """Read the grammars and the library, and run a pass on a step."""
    from importlib.util import find_spec

    from irgraph.language import load_pass
    from passes import names

    if find_spec("torch") is not None:
        import torch  # noqa: F401
    for name in names():
        load_pass(name)
    rewrite(graph, "fuse-epilogue, resize-batch(to = 32)")


def analyze_traces(traces: str | Path | Sequence[str | Path], *, strict: bool = False) -> Analysis:
    """Analyse Kineto traces, one for each rank: how the time of their steps is spent.

    Args:
        traces: files, or folders of ``irgraph record``.
        strict: whether to refuse traces that need repairs; ``Analysis.repairs`` lists them else.

    Raises:
        IrgraphError: a trace cannot be used.
    """
    from irgraph.analyze import analyze

    paths = [traces] if isinstance(traces, str | Path) else list(traces)
    trees = [_tree(trace, strict) for trace in paths]
    return analyze(sorted(trees, key=lambda tree: tree.trace.rank))


def replay_trace(trace: str | Path, *, means: bool = True, strict: bool = False) -> list[Replayed]:
    """Return every complete step of a Kineto trace: its measured times and their simulation.

    Args:
        trace: a file, or a folder of ``irgraph record``.
        means: whether to use mean host times of the trace, or each measured one.
        strict: whether to refuse a trace that needs repairs.

    Raises:
        IrgraphError: the trace cannot be used, or has no device events.
    """
    from irgraph.replay.host_times import HostTimes
    from irgraph.replay.replay import build_replayer

    tree = _tree(trace, strict)
    if not tree.trace.on_device.any():
        raise fail("no device events to replay", SourceSpan(str(trace)))
    return build_replayer(tree).replay_all(None if means else HostTimes())


def _tree(trace: str | Path, strict: bool) -> Tree:
    from irgraph.capture.kineto import read_kineto
    from irgraph.capture.kineto.events.tree import build_tree
    from irgraph.capture.recording.folder import kineto_trace

    tree = build_tree(read_kineto(kineto_trace(str(trace)), strict=strict))
    if strict:
        tree.trace.health.demand_clean()
    return tree
