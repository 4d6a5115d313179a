"""``irgraph predict``: what a step would take on a device."""

from __future__ import annotations

from typing import Annotated

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
    measured: Annotated[
        str | None, typer.Option(metavar="TIME", help="A step time you know, such as 12.3ms.")
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIGURE=BOUND", help="Exit with 1 above it: error=10%, step.time=9ms."
        ),
    ] = None,
    timeline: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the timeline for Perfetto here.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Predict step time, device activity and critical path of a model."""
    from irgraph.prediction import predict as run
    from irgraph.report.limits import broken_limits, parse_time
    from irgraph.report.prediction import prediction_tables
    from irgraph.schedule.accounting import find_accounting

    known = parse_time(measured, "--measured") if measured is not None else None
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
    )
    summary = prediction.summary()
    broken = broken_limits(limit or [], summary, known)
    if timeline is not None:
        from irgraph.schedule.perfetto import write_timeline

        write_timeline(prediction.timeline, timeline)
    if json:
        write_json({**summary, "measured_us": known, "broken_limits": broken})
    else:
        out = console()
        for table in prediction_tables(summary, known):
            out.print(table)
    for line in broken:
        say(line)
    raise typer.Exit(1 if broken else 0)
