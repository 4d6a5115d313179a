"""Applies pipelines of passes and scripts to a graph, in order, each as one transaction."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import passes
from irgraph.ir.graph import Graph
from irgraph.language import Pricer, Report, load_pass, load_script, parse_pipeline, run
from irgraph.language.tree import Script
from irgraph.report.files import read_text
from irgraph.text.diagnostics import fail, near

KINDS = ("pass", "text", "script")


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to apply.

    Attributes:
        kind: ``pass`` (a pipeline such as ``a(x=1), b``), ``text`` (statements) or ``script``
            (a file of statements).
        text: the pipeline, the statements, or the file's path.
    """

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Applied:
    """What one step did: its label, the language's report, and the seconds it took."""

    label: str
    report: Report
    seconds: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """The graph after all steps, and what each did."""

    graph: Graph
    applied: tuple[Applied, ...] = ()

    @property
    def assumptions(self) -> tuple[str, ...]:
        """All that the result rests on without proof."""
        return tuple(reason for step in self.applied for reason in step.report.assumptions)

    def report_lines(self) -> list[str]:
        """Return what was done as lines of text."""
        return [line for step in self.applied for line in str(step.report).splitlines()]

    def __str__(self) -> str:
        """Return what was done as text."""
        return "\n".join(self.report_lines())


def run_steps(
    graph: Graph,
    steps: Sequence[Step],
    *,
    pass_path: Sequence[str] = (),
    pricer: Pricer | None = None,
) -> Outcome:
    """Apply steps in order and return the new graph with reports.

    All steps are read before the first is applied, so that an error in a later one costs nothing.
    Raises ``IrgraphError``: exit code 4 for a script that is wrong, 1 for an illegal change.
    """
    scripts = [(step.text, read_step(step)) for step in steps]
    applied: list[Applied] = []
    for label, script in scripts:
        start = time.perf_counter()
        outcome = run(script, graph, pricer=pricer, paths=pass_path)
        graph = outcome.graph
        applied.append(Applied(label, outcome.report, time.perf_counter() - start))
    return Outcome(graph, tuple(applied))


def read_step(step: Step) -> Script:
    """Return the script of a step; raise ``IrgraphError`` with the place of an error."""
    if step.kind == "pass":
        return parse_pipeline(step.text)
    if step.kind == "text":
        return load_script(step.text, "-e")
    return load_script(read_text(step.text), step.text)


def find_pass(name: str, pass_path: Sequence[str] = ()) -> passes.PassFile:
    """Return the file of a pass; raise ``IrgraphError`` with a near word where there is none."""
    found = passes.find(name, pass_path)
    if found is None:
        hint = near(name, passes.names(pass_path))
        raise fail(f"no pass is called {name!r}{hint}", hint="irgraph passes lists them")
    return found


def describe_passes(pass_path: Sequence[str] = ()) -> list[dict[str, str]]:
    """Return name, parameters and description of every pass."""
    rows = []
    for name in passes.names(pass_path):
        declared = load_pass(name, pass_path)
        parameters = ", ".join(map(str, declared.parameters))
        rows.append({"name": name, "parameters": parameters, "description": declared.description})
    return rows
