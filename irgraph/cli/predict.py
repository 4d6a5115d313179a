"""``irgraph predict``: what a step would take on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from irgraph.cli.common import (
    DeviceOption,
    DimOption,
    HostOption,
    JsonOption,
    ModelArgument,
    console,
    read_model,
    say,
    with_dim_options,
    write_json,
)

if TYPE_CHECKING:
    from irgraph.schedule.recorded import RecordedStep

ModeOption = Annotated[
    str, typer.Option("--mode", help="Kernel formulas: corrected, or paper (as published).")
]
SoftwareOption = Annotated[
    str, typer.Option("--software", metavar="NAME", help="Which kernels the ops launch.")
]
PinnedOption = Annotated[
    bool | None,
    typer.Option("--pinned/--pageable", help="Where host tensors lie; the model says by default."),
]

IndicesOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[TABLE=]SPEC",
        help="How embedding tables are looked up: uniform, zipf:1.05, a .json file (repeatable).",
    ),
]

WeightsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--weights",
        metavar="FILE",
        help="A model trained on the device's own measurements (repeatable).",
    ),
]


def predict(
    model: ModelArgument,
    device: DeviceOption = "v100",
    host: HostOption = "v100",
    dim: DimOption = None,
    mode: ModeOption = "corrected",
    software: SoftwareOption = "torch-2",
    accounting: Annotated[
        str, typer.Option(help="Rules of the schedule: blocking, paper, code-2021 …")
    ] = "blocking",
    pinned: PinnedOption = None,
    indices: IndicesOption = None,
    weights: WeightsOption = None,
    measured: Annotated[
        str | None, typer.Option(metavar="TIME", help="A step time you know, such as 12.3ms.")
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIGURE=BOUND",
            help="Exit with 1 above it: error=10%, step.time=9ms, memory.peak=16GiB.",
        ),
    ] = None,
    timeline: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the timeline for Perfetto here.")
    ] = None,
    recorded: Annotated[
        str | None,
        typer.Option(
            metavar="TRACE", help="A Kineto trace of the step: beside it in figures and timeline."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Predict step time, device activity and critical path of a model."""
    from irgraph.prediction import predict as run
    from irgraph.report.limits import broken_limits, parse_time
    from irgraph.report.prediction import prediction_tables
    from irgraph.schedule.accounting import find_accounting

    known = parse_time(measured, "--measured") if measured is not None else None
    beside = recorded_step(recorded) if recorded is not None else None
    if beside is not None and known is None:
        known = beside.step.time
    rules = find_accounting(accounting)
    graph = with_dim_options(read_model(model), dim)
    prediction = run(
        graph,
        device,
        host,
        mode=mode,
        software=software,
        accounting=rules,
        pinned=pinned,
        indices=indices or (),
        weights=weights or (),
    )
    summary = prediction.summary()
    broken = broken_limits(limit or [], summary, known)
    if timeline is not None:
        from irgraph.schedule.perfetto import write_side_by_side, write_timeline

        if beside is None:
            write_timeline(prediction.timeline, timeline)
        else:
            write_side_by_side({"measured": beside, "predicted": prediction.timeline}, timeline)
    if json:
        write_json({**summary, "measured_us": known, "broken_limits": broken})
    else:
        out = console()
        for table in prediction_tables(summary, known):
            out.print(table)
    for line in broken:
        say(line)
    raise typer.Exit(1 if broken else 0)


def recorded_step(path: str) -> RecordedStep:
    """Return the last complete step of a trace that is not far longer than the others."""
    from irgraph.cli.traces import read_trees
    from irgraph.schedule.recorded import RecordedStep
    from irgraph.schedule.replay import usual_steps
    from irgraph.text.diagnostics import Place, fail

    (tree,) = read_trees([path], strict=False, health=False)
    steps = usual_steps(tree)
    if not steps:
        raise fail("the trace has no complete step to compare with", Place(path))
    return RecordedStep(tree, steps[-1])
