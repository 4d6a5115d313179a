"""``irgraph predict``: the predicted time of a step on a device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from irgraph.cli import common as cli
from irgraph.cli.html import HtmlOption

if TYPE_CHECKING:
    from irgraph.ir.graph import Graph
    from irgraph.replay.recorded_step import RecordedStep
    from irgraph.schedule.timeline import Timeline

PANEL = "predict"

ModeOption = Annotated[
    str, typer.Option("--mode", help="Kernel formulas: corrected, or paper (as published).")
]
SoftwareOption = Annotated[
    str,
    typer.Option(
        "--software", metavar="NAME", help="Software stack: which kernels the ops launch."
    ),
]
PinnedOption = Annotated[
    bool | None,
    typer.Option(
        "--pinned/--pageable", help="Memory of host tensors (default: the model's setting)."
    ),
]

IndicesOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[TABLE=]SPEC",
        help="Distribution of embedding indices: uniform, zipf:1.05, zipf:1.05 bags poisson, a "
        ".json file (repeatable).",
    ),
]

WeightsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--weights",
        metavar="FILE|db:NAME",
        help="Models trained on the device's own measurements, or measured calls (repeatable).",
    ),
]


AccountingOption = Annotated[
    str, typer.Option(help="Scheduling rules: blocking, paper, code-2021 …")
]
KnownOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="A measured step time, such as 12.3ms.")
]
LimitOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FIGURE=BOUND",
        help="Exit with 1 above this limit: error=10%, step.time=9ms, memory.peak=16GiB.",
    ),
]
LoaderOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME[/WORKERS]",
        help="Time in which the program's loader makes a batch, such as 12ms, and its number of "
        "workers: 12ms/4 (default: the model's).",
    ),
]
PeriodOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Steps of which one is the model's rarer step, such as an evaluation every N "
        "(default: as captured).",
    ),
]
TimelineOption = Annotated[
    str | None, typer.Option(metavar="FILE", help="Write the timeline for Perfetto here.")
]
ChakraOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Write the timeline as a Chakra execution trace here, as ASTRA-sim reads it.",
        callback=lambda path: cli.writable_path(path),
    ),
]
RecordedOption = Annotated[
    str | None,
    typer.Option(metavar="TRACE", help="A Kineto trace of the step, shown beside the prediction."),
]


ShowOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TABLE",
        help="Show a table: figures, causes, ops, modules, savings, kernels or all (repeatable).",
    ),
]


def predict(
    model: cli.ModelArgument,
    device: cli.CardOption = None,
    host: cli.HostOption = "default",
    dim: cli.DimOption = None,
    mode: ModeOption = "corrected",
    software: SoftwareOption = "torch-2",
    accounting: AccountingOption = "blocking",
    pinned: PinnedOption = None,
    indices: IndicesOption = None,
    weights: WeightsOption = None,
    ranks: cli.RanksOption = None,
    fabric: cli.FabricOption = None,
    loader: LoaderOption = None,
    period: PeriodOption = None,
    formulas: cli.FormulasOption = False,
    measured: KnownOption = None,
    limit: LimitOption = None,
    timeline: TimelineOption = None,
    chakra: ChakraOption = None,
    recorded: RecordedOption = None,
    html: HtmlOption = None,
    show: ShowOption = None,
    json: cli.JsonOption = False,
) -> None:
    """Predict step time, device activity and critical path of a model."""
    from irgraph.diagnostics.quantities import parse_time
    from irgraph.predict.limits import broken_limits
    from irgraph.predict.prediction import predict as run
    from irgraph.predict.tables import check_table_names

    check_table_names(show or ())
    graph, measured_us = _model(model, device)
    _check_ops(graph, model)
    measured_us = parse_time(measured, "--measured") if measured is not None else measured_us
    recorded_run = recorded_step(recorded) if recorded is not None else None
    if recorded_run is not None and measured_us is None:
        measured_us = recorded_run.step.time
    prediction = run(
        cli.with_dim_options(graph, dim),
        device=device,
        host=host,
        mode=mode,
        software=software,
        accounting=accounting,
        pinned=pinned,
        indices=indices or (),
        weights=weights or (),
        measured=not formulas,
        ranks=ranks,
        fabric=fabric,
        loader=loader,
        period=period,
    )
    summary = prediction.summary()
    broken = broken_limits(limit or [], summary, measured_us)
    if timeline is not None:
        _write_timeline(timeline, prediction.timeline, recorded_run)
    if html is not None:
        from irgraph.cli.html import write_page
        from irgraph.pages.prediction import prediction_page

        write_page(
            prediction_page(prediction, summary, measured=measured_us, recorded=recorded_run), html
        )
    if chakra is not None:
        from irgraph.exchange.chakra import write_chakra

        write_chakra(prediction.timeline, prediction.priced, chakra)
    if json:
        cli.write_json({**summary, "measured_us": measured_us, "broken_limits": broken})
    else:
        _show(summary, measured_us, show or ())
    for line in broken:
        cli.print_error(line)
    raise typer.Exit(1 if broken else 0)


def _model(path: str, device: str | None) -> tuple[Graph, float | None]:
    """Return a model and ``None``, or the lowered recording in a folder and its step time (us).

    The time is ``None`` if the recording is from the CPU or ``device`` is specified.
    """
    if not Path(path).is_dir():
        return cli.read_typed_model(path), None
    from irgraph.capture.lower import lower_file
    from irgraph.capture.recording.folder import figures

    captured = lower_file(path)
    cli.print_capture_notes(captured)
    recording = figures(path)
    if device is not None or not recording.on_accelerator:
        device_text = "another device" if recording.on_accelerator else "the CPU"
        cli.print_error(
            f"note: recorded on {device_text}, so its step time, "
            f"{recording.step_time_us / 1e3:.3f} ms, is not compared with the prediction (use "
            "--measured for that)"
        )
        return captured.graph, None
    return captured.graph, recording.step_time_us


def _check_ops(graph: Graph, path: str) -> None:
    """Refuse a model without ops: 0 us would be a meaningless prediction."""
    if any(not op.is_annotation for op in graph.walk()):
        return
    from irgraph.diagnostics import SourceSpan, fail

    raise fail("the model has no op, so there is no step to predict", SourceSpan(path))


def _write_timeline(path: str, predicted: Timeline, recorded: RecordedStep | None) -> None:
    """Write a timeline for Perfetto, with the recorded step if there is one."""
    from irgraph.schedule.perfetto import write_side_by_side, write_timeline

    if recorded is None:
        write_timeline(predicted, path)
    else:
        write_side_by_side({"measured": recorded, "predicted": predicted}, path)


def _show(summary: dict[str, Any], measured_us: float | None, names: Sequence[str]) -> None:
    """Print the answer, its warnings, and tables: some rows of the costliest, or those named."""
    from irgraph.predict.answer import answer
    from irgraph.predict.tables import brief_tables, prediction_tables

    tables = prediction_tables(summary, measured_us, names)
    out = cli.console()
    for line in answer(summary, measured_us):
        out.print(line)
    for line in summary["warnings"]:
        out.print(f"warning: {line}", style="red")
    for line in summary["assumptions"]:
        out.print(f"rests on: {line}")
    for table in tables or brief_tables(summary):
        out.print()
        out.print(table)
    if not tables:
        out.print("\nMore: --show figures, ops, modules, savings, kernels or all; --html FILE.")


def recorded_step(path: str) -> RecordedStep:
    """Return the last typical step of a trace: complete, and not much longer than the others."""
    from irgraph.cli.traces import read_tree
    from irgraph.diagnostics import SourceSpan, fail
    from irgraph.replay.recorded_step import RecordedStep
    from irgraph.replay.replay import select_typical_steps

    tree = read_tree(path)
    steps = select_typical_steps(tree)
    if not steps:
        raise fail("the trace has no complete step to compare with", SourceSpan(path))
    return RecordedStep(tree, steps[-1])
