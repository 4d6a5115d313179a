"""``irgraph ranks``: models of several ranks, predicted together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from irgraph.cli import common as cli
from irgraph.cli.traces import print_rows

if TYPE_CHECKING:
    from irgraph.predict.prediction import Prediction
    from irgraph.schedule.ranks import Ranks

PANEL = "predict"

MEASURED = (
    "measured collectives contain waiting: each takes its minimum over ranks; "
    "waiting common to all {count} ranks stays in it"
)

ModelsArgument = Annotated[
    list[str], typer.Argument(metavar="MODEL...", help="A model for each rank, in order.")
]


def ranks(
    models: ModelsArgument,
    device: cli.CardOption = None,
    host: cli.HostOption = "v100",
    dim: cli.DimOption = None,
    ranks: cli.RanksOption = None,
    fabric: cli.FabricOption = None,
    late: Annotated[
        list[str] | None,
        typer.Option(metavar="RANK=TIME", help="Start a rank later: 7=7.5ms (repeatable)."),
    ] = None,
    timeline: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write all ranks for Perfetto here.")
    ] = None,
    json: cli.JsonOption = False,
) -> None:
    """Predict several ranks together: a collective starts when the last rank arrives."""
    from irgraph.predict.options import PredictOptions
    from irgraph.predict.ranks import each_rank, rank_groups
    from irgraph.schedule.ranks import simulate_ranks

    graphs = {
        path: cli.with_dim_options(cli.read_model(path), dim) for path in dict.fromkeys(models)
    }
    options = PredictOptions(device=device, host=host, ranks=ranks, fabric=fabric)
    predictions = each_rank([graphs[path] for path in models], options)
    starts = _starts(late or [], len(models))
    groups = rank_groups([graphs[path] for path in models])
    found = simulate_ranks([p.timeline for p in predictions], starts=starts, groups=groups)
    if timeline is not None:
        from irgraph.schedule.perfetto import write_timeline

        write_timeline(found.timeline, timeline)
    _show(models, found, _rests_on(predictions), json)


def _rests_on(predictions: list[Prediction]) -> list[str]:
    """Return the sources of the collectives' times, and warnings about them."""
    from irgraph.schedule.ranks import is_collective, is_timed

    lines = dict.fromkeys(line for p in predictions for line in p.summary()["collectives"])
    timed = all(any(is_collective(k) and is_timed(k) for k in p.kernels()) for p in predictions)
    notes = [MEASURED.format(count=len(predictions))] if timed else []
    warnings = dict.fromkeys(f"WARNING: {text}" for p in predictions for text in p.warnings)
    return [*lines, *notes, *warnings]


def _starts(late: list[str], count: int) -> list[float]:
    """Return the start of each rank in microseconds; ranks not named start at 0."""
    from irgraph.diagnostics import fail
    from irgraph.predict.limits import parse_time

    starts: dict[str, float] = {}
    for item in late:
        rank, _, text = item.partition("=")
        if rank not in map(str, range(count)):
            raise fail(f"--late: there is no rank {rank!r} among {count} models", exit_code=2)
        if rank in starts:
            raise fail(f"--late: rank {rank} is given twice: name each rank once", exit_code=2)
        starts[rank] = parse_time(text, f"--late {rank}")
    return [starts.get(str(rank), 0.0) for rank in range(count)]


def _show(models: list[str], found: Ranks, lines: list[str], as_json: bool) -> None:
    """Print a row for each rank, and the straggler."""
    if as_json:
        cli.write_json({"straggler": found.straggler, **_figures(models, found), "rests_on": lines})
        return
    rows = _figures(models, found)["ranks"]
    print_rows("ranks", [{k: _cell(k, v) for k, v in row.items()} for row in rows])
    count, transfer = len(found.meetings), sum(m.transfer for m in found.meetings) / 1e3
    cli.say(f"{count} collective{'s' if count != 1 else ''}, {transfer:.3f} ms of transfer")
    if any(found.waiting):
        cli.say(f"most waiting is for rank {found.straggler}")
    for line in lines:
        cli.say(line)


def _figures(models: list[str], found: Ranks) -> dict[str, Any]:
    columns = zip(models, found.steps, found.waiting, found.exposed, strict=True)
    return {
        "step_time_us": found.step_time,
        "ranks": [
            {"rank": rank, "model": model, "step_us": step, "waits_us": wait, "exposed_us": alone}
            for rank, (model, step, wait, alone) in enumerate(columns)
        ],
        "collectives": [
            {"name": m.name, "start_us": m.start, "transfer_us": m.transfer,
             "waits_us": list(m.waits), "last": m.last}
            for m in found.meetings
        ],
    }  # fmt: skip


def _cell(name: str, value: float | str) -> str:
    return f"{float(value):.1f}" if name.endswith("_us") else str(value)
