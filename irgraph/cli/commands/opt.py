"""``irgraph opt``: transform a model with passes and scripts."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from irgraph.cli import common as cli
from irgraph.cli.html import HtmlOption
from irgraph.cli.pipeline import (
    PassOption,
    PipelineCommand,
    ScriptOption,
    TextOption,
    print_table,
    steps_of,
)

if TYPE_CHECKING:
    from irgraph.ir.graph import Graph
    from irgraph.language.expressions.evaluate import Target
    from irgraph.manage.result_check import ResultCheck, Verdict
    from irgraph.manage.stage import Applied, Outcome, PipelineStep, Stage
    from irgraph.manage.watch import Tabular, Watcher

PANEL = "transform"
COMMAND = PipelineCommand

UNCOMPARED = 3
"""Exit code if the meaning of a rewrite could not be compared."""

DEFECT = "irgraph-defect.ir"
"""Default file of the reproducer of an internal error."""

PricedOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="NAME|FILE",
        help="Device for op.time, and for each stage's predicted gain.",
    ),
]
QuietOption = Annotated[bool, typer.Option("-q", "--quiet", help="No report.")]
PrintAfterOption = Annotated[
    str | None,
    typer.Option(
        metavar="=PASS|changed|failed",
        help="Print the model to stderr after every stage, or after these.",
    ),
]
DiffOption = Annotated[bool, typer.Option("--diff", help="Show the changes of each stage.")]
TimesOption = Annotated[bool, typer.Option("--time-passes", help="Show each stage's run time.")]
StatsOption = Annotated[
    bool, typer.Option("--stats", help="Show what each statement tried and matched.")
]
StopOption = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="Run only the first N stages.")
]
NoVerifyOption = Annotated[
    bool, typer.Option("--no-verify", help="Do not verify results against the IR's rules.")
]
ReproducerOption = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="If a stage fails, write its model and script here."),
]
CheckOption = Annotated[
    bool,
    typer.Option(
        "--check",
        help="Run both models with torch; if results differ, write nothing and exit with 1.",
    ),
]


def opt(
    ctx: typer.Context,
    model: cli.ModelArgument,
    pass_: PassOption = None,
    text: TextOption = None,
    script: ScriptOption = None,
    pass_path: cli.PassPathOption = None,
    dim: cli.DimOption = None,
    device: PricedOption = None,
    host: cli.HostOption = "default",
    ranks: cli.RanksOption = None,
    fabric: cli.FabricOption = None,
    output: cli.OutputOption = None,
    quiet: QuietOption = False,
    print_after: PrintAfterOption = None,
    diff: DiffOption = False,
    time_passes: TimesOption = False,
    stats: StatsOption = False,
    stop_after: StopOption = None,
    no_verify: NoVerifyOption = False,
    reproducer: ReproducerOption = None,
    check: CheckOption = False,
    html: HtmlOption = None,
) -> None:
    """Apply passes and scripts in the order given; print the new model, report what changed.

    A reproducer of an earlier failure runs again with its own script.
    """
    from irgraph.manage.result_check import ResultCheck
    from irgraph.manage.stage import stages
    from irgraph.text import print_graph

    steps = steps_of(ctx, pass_, text, script)
    graph, recorded = _read(model, verified=not no_verify)
    graph = cli.with_rank_options(cli.with_dim_options(graph, dim), ranks, fabric)
    pipeline = stages(steps or recorded)
    _note_shadowed_passes(pipeline, pass_path or ())
    priced = _PricingOptions(device, host, ranks, fabric)
    tables = _tables(stats, time_passes, priced)
    if device is not None:
        cli.print_step_notes(graph, host)
    result_check = ResultCheck(tuple(pass_path or ()))
    watchers = _watchers(pipeline, print_after, diff, stop_after)
    settings = _RunSettings(reproducer, tuple(pass_path or ()), verified=not no_verify)
    outcome = _run(graph, pipeline, priced, [*tables, *watchers, result_check], settings)
    if not quiet:
        for line in outcome.report_lines():
            cli.print_error(line)
        _print_memory_change(graph, outcome.graph)
    for stage in outcome.skipped:
        cli.print_error(f"left out: {stage}")
    for table in tables:
        print_table(table.title, table.rows(), sys.stderr, table.caption)
        for line in table.remarks():
            cli.print_error(line)
    check_lines = _check(result_check) if check else []
    if html is not None:
        _report(graph, outcome, tables, check_lines, priced, html)
    cli.write_result(print_graph(outcome.graph), output)
    if any(_is_uncompared(step, result_check) for step in outcome.applied):
        raise typer.Exit(UNCOMPARED)


def _is_uncompared(step: Applied, result_check: ResultCheck) -> bool:
    """Return whether the meaning of a rewrite that must preserve results was not compared."""
    return bool(step.report.uncompared) and not result_check.changes_results(step.stage)


def _note_shadowed_passes(pipeline: Sequence[Stage], folders: Sequence[str]) -> None:
    """Report the file of each pass that several folders contain."""
    from irgraph.manage.run import find_pass, shadowed_passes

    hidden = shadowed_passes(folders) if folders else {}
    for name in sorted({stage.name for stage in pipeline} & hidden.keys()):
        others = ", ".join(map(str, hidden[name]))
        cli.print_error(
            f"note: {name} is from {find_pass(name, folders).source}; it hides {others}"
        )


class _PricingOptions(NamedTuple):
    """Device, host, ranks and fabric of a command line."""

    device: str | None
    host: str
    ranks: str | None
    fabric: str | None

    def target(self) -> Target | None:
        return None if self.device is None else self.find(self.device)

    def find(self, device: str) -> Target:
        from irgraph.manage.run import find_target
        from irgraph.predict.options import PredictOptions

        return find_target(device, PredictOptions(host=self.host))

    def __str__(self) -> str:
        names = ("device", "host", "ranks", "fabric") if self.device is not None else ()
        options = ((name, getattr(self, name)) for name in names)
        return "".join(f" --{name} {value}" for name, value in options if value is not None)


class _RunSettings(NamedTuple):
    """The reproducer's file and other settings of a pipeline run."""

    reproducer: str | None
    folders: tuple[str, ...]
    verified: bool


def _run(
    graph: Graph,
    pipeline: Sequence[Stage],
    priced: _PricingOptions,
    watchers: Sequence[Watcher],
    settings: _RunSettings,
) -> Outcome:
    """Run a pipeline; if it fails, print the command that reproduces the failure."""
    from irgraph.manage.reproducer import Reproducer
    from irgraph.manage.run import run_stages

    path, folders = settings.reproducer or DEFECT, settings.folders
    reproducer = Reproducer(path, folders, defects=settings.reproducer is None)
    try:
        return run_stages(
            graph,
            pipeline,
            pass_path=folders,
            pricer=priced.target(),
            targets=priced.find,
            watchers=[*watchers, reproducer],
            verified=settings.verified,
        )
    finally:
        if reproducer.written:
            cli.print_error(f"note: irgraph opt {path}{priced} reproduces the failure")


def _tables(stats: bool, times: bool, priced: _PricingOptions) -> list[Tabular]:
    """Return the watchers that collect the tables requested by options."""
    from irgraph.manage import gains, watch

    target = priced.target()
    tables: list[Tabular] = [watch.Statistics()] if stats else []
    tables += [watch.Timing()] if times else []
    tables += [gains.Gains(target)] if target is not None else []
    return tables


def _watchers(
    pipeline: Sequence[Stage], print_after: str | None, diff: bool, stop_after: int | None
) -> list[Watcher]:
    """Return the watchers requested by options."""
    from irgraph.manage import watch

    if print_after is not None:
        _check_name(print_after, {*watch.PRINT_CHOICES, *(stage.name for stage in pipeline)})
    watchers: list[Watcher] = (
        [watch.PrintAfter(print_after, cli.print_error)] if print_after else []
    )
    watchers += [watch.PrintDiff(cli.print_error)] if diff else []
    watchers += [watch.StopAfter(stop_after)] if stop_after is not None else []
    return watchers


def _print_memory_change(before: Graph, after: Graph) -> None:
    """Print the change of the step's peak memory, if any."""
    from irgraph.report.console import bytes_text
    from irgraph.schedule.memory.peak import peak_memory

    first, last = peak_memory(before).peak, peak_memory(after).peak
    if first != last:
        change = f"{last / first - 1:+.1%}" if first else "from nothing"
        change_text = f"{bytes_text(first)} before, {bytes_text(last)} after ({change})"
        cli.print_error(f"peak memory of tensors: {change_text}")


def _report(
    graph: Graph,
    outcome: Outcome,
    tables: Sequence[Tabular],
    check_lines: Sequence[str],
    priced: _PricingOptions,
    path: str,
) -> None:
    """Write the report of a pipeline, with predictions if a device was specified."""
    from irgraph.cli.html import write_page
    from irgraph.manage.gains import Gains
    from irgraph.pages.rewrite import rewrite_page
    from irgraph.predict.difference import diff as subtract

    steps = [step for table in tables if isinstance(table, Gains) for step in table.steps]
    difference = None
    if priced.device is not None:
        difference = subtract(graph, outcome.graph, device=priced.device, host=priced.host)
    page = rewrite_page(graph, outcome, steps=steps, check_lines=check_lines, difference=difference)
    write_page(page, path)


def _check(result_check: ResultCheck) -> list[str]:
    """Run the models around the stages and compare their results; exit with 1 if they differ."""
    verdicts = list(result_check.verdicts())
    lines = [line for verdict in verdicts for line in _verdict_lines(verdict, len(verdicts))]
    lines = lines or ["same: the model has not changed"]
    for line in lines:
        cli.print_error(line)
    if not all(verdict.same for verdict in verdicts):
        cli.print_error("the new model is not written: its results differ")
        raise typer.Exit(1)
    return lines


def _verdict_lines(verdict: Verdict, count: int) -> Iterator[str]:
    """Yield lines on the comparison of results around some stages; ``count`` is of all verdicts."""
    names = ", ".join(stage.label for stage in verdict.stages)
    if verdict.result is None:
        yield f"{names}: changes results on purpose, so they are not compared"
        return
    if count > 1:
        yield f"{names}:"
    yield from verdict.result.lines()
    if verdict.culprit is not None:
        yield f"the first stage whose results differ: {verdict.culprit}"


def _check_name(name: str, stage_names: set[str]) -> None:
    from irgraph.diagnostics import fail, suggestion

    if name not in stage_names:
        message = f"--print-after: unknown stage {name!r}{suggestion(name, stage_names)}"
        raise fail(message, hint=f"known: {', '.join(sorted(stage_names))}", exit_code=2)


def _read(path: str, *, verified: bool) -> tuple[Graph, list[PipelineStep]]:
    """Return a model and, if it is a reproducer, its stages."""
    from irgraph import api
    from irgraph.files import read_text
    from irgraph.manage.reproducer import model_text, recorded_script
    from irgraph.manage.stage import PipelineStep

    text = read_text(path)
    graph = api.read_graph_text(model_text(text), path)
    if verified:
        graph = api.verified(graph, text)
        cli.note_unverified_types(path, is_verified=api.verify_types(graph, text))
    script = recorded_script(text)
    return graph, [PipelineStep("text", script)] if script else []
