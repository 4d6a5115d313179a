"""Drawings of a few ops as SVG, laid out by Graphviz (``dot``, graphviz.org)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from irgraph.diagnostics import fail
from irgraph.exchange.explorer.graph import type_text
from irgraph.files import write_atomic
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor

MAX_OPS = 200
"""Maximum number of ops in a drawing: more would be illegible."""

TIMEOUT_S = 60
"""Maximum duration of the layout, in seconds."""

DOT_HEADER = """digraph {
  graph [rankdir = TB, nodesep = 0.25, ranksep = 0.35, bgcolor = "transparent"]
  node [shape = box, style = "rounded,filled", fillcolor = "#eef3fa", color = "#4878a8",
        fontname = "sans-serif", fontsize = 11, margin = "0.12,0.06"]
  edge [color = "#777777", fontname = "sans-serif", fontsize = 9, fontcolor = "#555555",
        arrowsize = 0.7]
"""

FILLS = {"forward": "#eef3fa", "backward": "#fbeee0", "optimizer": "#eaf5ea"}
"""Colours of phases."""


def write_svg(graph: Graph, ops: Sequence[Op], path: str | Path) -> None:
    """Draw outermost ops of a graph, with the tensors between them, as an SVG.

    Raises ``IrgraphError`` (exit code 2) if there are none or too many, if Graphviz is not
    installed, or if the file cannot be written.
    """
    write_atomic(path, _lay_out(dot_text(graph, ops)))


def select_ops(graph: Graph, module: str | None, phase: str | None) -> list[Op]:
    """Return the outermost ops of a module and its submodules, and of a phase; ``None`` is any.

    Raises ``IrgraphError`` (exit code 2) if there are none, or more than ``MAX_OPS``.
    """
    selected = [
        op
        for op in graph.top_level()
        if (module is None or f"{op.module}.".startswith(f"{module}."))
        and (phase is None or op.phase == phase)
    ]
    if not selected:
        raise fail("--svg: no op has that module and phase", hint=_modules(graph), exit_code=2)
    if len(selected) > MAX_OPS:
        message = f"--svg: {len(selected)} ops are too many to be drawn, {MAX_OPS} are the most"
        hint = "choose some by --module or --phase; irgraph explore shows all"
        raise fail(message, hint=hint, exit_code=2)
    return selected


def _modules(graph: Graph) -> str:
    top_modules = dict.fromkeys(op.module.partition(".")[0] for op in graph.walk() if op.module)
    return f"its modules: {', '.join(list(top_modules)[:12]) or 'none'}"


def dot_text(graph: Graph, ops: Sequence[Op]) -> str:
    """Return a drawing in Graphviz's language: ops, external tensors, and the edges between them.

    Inner ops are drawn as part of their outermost op.
    """
    return DOT_HEADER + "".join(f"  {line}\n" for line in _lines(graph, ops)) + "}\n"


def _lines(graph: Graph, ops: Sequence[Op]) -> Iterator[str]:
    roles = {declared.tensor.name: declared.role for declared in graph.tensors}
    makers: dict[str, str] = {}
    for index, op in enumerate(ops):
        node = f"op{index}"
        yield _op_line(node, op)
        for tensor in dict.fromkeys(_inputs(op)):
            source = makers.get(tensor.name)
            if source is None:
                source = makers[tensor.name] = quote(f"%{tensor.name}")
                label = f"{roles.get(tensor.name, 'from outside')} %{tensor.name}"
                text = quote(f"{label}\n{type_text(tensor)}")
                yield f'{source} [label = {text}, style = "rounded", color = "#999999"]'
            yield f"{source} -> {node}"
        makers |= {tensor.name: node for tensor in _outputs(op)}


def _op_line(node: str, op: Op) -> str:
    results = [f"%{t.name} {type_text(t)}" for t in op.outputs[:2]]
    written = [f"writes %{name}" for name in sorted(op.written)[:2]]
    label = quote("\n".join([op.name, *results, *written]))
    return f'{node} [label = {label}, fillcolor = "{FILLS.get(op.phase, FILLS["forward"])}"]'


def _inputs(op: Op) -> Iterator[Tensor]:
    """Yield the tensors that an op or its inner ops read from outside."""
    inner_results: set[str] = set()
    for inner in op.walk():
        yield from (t for t in inner.inputs if t.name not in inner_results)
        inner_results.update(t.name for t in inner.outputs)


def _outputs(op: Op) -> Iterator[Tensor]:
    """Yield the tensors that an op or its inner ops create or write."""
    for inner in op.walk():
        yield from inner.outputs
        yield from (t for t in inner.inputs if t.name in inner.written)


def quote(text: str) -> str:
    """Quote a text for Graphviz, so that nothing in it is read as an escape or an entity."""
    escaped = text.replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"')
    escaped = escaped.replace("\n", "\\n")
    return f'"{escaped}"'


def _lay_out(text: str) -> bytes:
    dot = shutil.which("dot")
    if dot is None:
        hint = "install Graphviz: apt install graphviz, or brew install graphviz"
        raise fail("drawings need Graphviz: dot is not installed", hint=hint, exit_code=2)
    try:
        process = subprocess.run(
            [dot, "-Tsvg"], input=text.encode(), capture_output=True, timeout=TIMEOUT_S, check=True
        )
    except subprocess.TimeoutExpired:
        hint = "choose fewer ops by --module or --phase"
        raise fail(f"dot did not finish within {TIMEOUT_S} s", hint=hint, exit_code=2) from None
    except (OSError, subprocess.CalledProcessError) as error:
        stderr = getattr(error, "stderr", b"") or str(error).encode()
        raise fail(f"dot failed: {stderr.decode('utf-8', 'replace').strip()[:300]}") from None
    return process.stdout
