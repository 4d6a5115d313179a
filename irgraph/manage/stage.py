"""Stages of a pipeline, each applied as one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from irgraph.diagnostics import IrgraphError
from irgraph.files import read_text
from irgraph.html.fragments import table_html
from irgraph.ir.graph import Graph
from irgraph.language import Report, Script, load_script, parse_pipeline
from irgraph.language.statements.apply import Apply

SOURCES = {"pass": "pipeline", "text": "script"}
"""Names of texts in messages, by kind, unless an input gives its own."""


@dataclass(frozen=True, slots=True)
class PipelineStep:
    """One input to apply, as the user gave it.

    Attributes:
        kind: ``pass`` (a pipeline such as ``a(x=1), b``), ``text`` (statements) or ``script``
            (a file of statements).
        text: the pipeline, the statements, or the file's path.
        source: name of the text in messages.
    """

    kind: str
    text: str
    source: str = ""

    def __post_init__(self) -> None:
        """Set the default source."""
        if not self.source:
            object.__setattr__(self, "source", SOURCES.get(self.kind, self.text))


@dataclass(frozen=True, slots=True)
class Stage:
    """One transaction: a pass with its arguments, or a whole script.

    Attributes:
        number: position in the pipeline, from 1.
        label: ``fuse-embedding(least = 4)``, the statements, or the script's file.
        name: name of the pass, or the label.
        script: the script that runs.
        source: name of its text in messages.
        is_pass: whether it is a pass of a pipeline.
    """

    number: int
    label: str
    name: str
    script: Script
    source: str = ""
    is_pass: bool = False

    def __str__(self) -> str:
        """Return the name of the stage in messages."""
        return f"stage {self.number}, {self.label}"


@dataclass(frozen=True, slots=True)
class Applied:
    """Result of one stage.

    Attributes:
        label: of the stage.
        report: the effect of each of its statements.
        seconds: its duration.
        stage: the stage.
        changed: whether the graph changed.
    """

    label: str
    report: Report
    seconds: float
    stage: Stage
    changed: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a pipeline or a script; ``str`` gives the report.

    Attributes:
        graph: the graph after all stages.
        applied: results of the stages, in order.
        skipped: the stages that a watcher skipped.
    """

    graph: Graph
    applied: tuple[Applied, ...] = ()
    skipped: tuple[Stage, ...] = ()

    @property
    def assumptions(self) -> tuple[str, ...]:
        """All unproven assumptions of the result."""
        return tuple(reason for step in self.applied for reason in step.report.assumptions)

    def report_lines(self) -> list[str]:
        """Return the report as lines of text."""
        return [line for step in self.applied for line in str(step.report).splitlines()]

    def _repr_html_(self) -> str:
        """Return a table for notebooks: the effect of each statement, and why it was legal."""
        entries = (entry for step in self.applied for entry in step.report.entries)
        rows = [
            (
                entry.caller or entry.verb,
                entry.summary,
                "; ".join(dict.fromkeys(entry.reasons)),
            )
            for entry in entries
            if not entry.spare
        ]
        return table_html("what was rewritten", rows, ("by", "what it did", "why that is legal"))

    def __str__(self) -> str:
        """Return the report as text."""
        return "\n".join(self.report_lines())


def read_step(step: PipelineStep) -> Script:
    """Return the script of a step; raise ``IrgraphError`` with the position of an error."""
    if step.kind == "pass":
        try:
            return parse_pipeline(step.text, step.source)
        except IrgraphError as error:
            raise IrgraphError(error.diagnostics, exit_code=2) from None
    text = step.text if step.kind == "text" else read_text(step.text)
    return load_script(text, step.source)


def stages(steps: Sequence[PipelineStep]) -> list[Stage]:
    """Return the stages of steps: each pass of a pipeline and each script is a stage.

    Raises ``IrgraphError`` with the position of an error in any of them.
    """
    pipeline: list[Stage] = []
    for step in steps:
        script = read_step(step)
        if step.kind != "pass":
            label = " ".join(step.text.split())
            pipeline.append(Stage(len(pipeline) + 1, label, label, script, step.source))
            continue
        for statement in script.body:
            assert isinstance(statement, Apply)
            pass_script = Script((), (statement,), place=script.place)
            call = statement.call
            number = len(pipeline) + 1
            pipeline.append(
                Stage(number, str(call), call.name, pass_script, step.source, is_pass=True)
            )
    return pipeline
