"""``irgraph ranks``: models of several ranks, predicted together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from irgraph.cli import common as cli
from irgraph.cli.html import HtmlOption
from irgraph.cli.traces import print_rows

if TYPE_CHECKING:
    from irgraph.predict.prediction import Prediction
    from irgraph.schedule.ranks import Ranks
    from irgraph.schedule.tasks import Floats

PANEL = "predict"

PERCENTILES = (10, 50, 90, 99)
"""Printed percentiles of the step time over draws of start times."""

ModelsArgument = Annotated[
    list[str], typer.Argument(metavar="MODEL...", help="A model for each rank, in order.")
]


def ranks(
    models: ModelsArgument,
    device: cli.CardOption = None,
    host: cli.HostOption = "default",
    dim: cli.DimOption = None,
    ranks: cli.RanksOption = None,
    fabric: cli.FabricOption = None,
    late: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RANK=TIME",
            help="Start a rank later: 7=7.5ms, all=normal:2ms,1ms (repeatable).",
        ),
    ] = None,
    draws: Annotated[
        int, typer.Option(min=2, max=100_000, help="Number of draws, if --late has distributions.")
    ] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Seed of these draws.")] = 0,
    timeline: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write all ranks for Perfetto here.")
    ] = None,
    chakra: Annotated[
        str | None,
        typer.Option(
            metavar="PREFIX",
            help="Write each rank as a Chakra execution trace: PREFIX.0.et and so on.",
            callback=lambda prefix: cli.writable_path(prefix and f"{prefix}.0.et") and prefix,
        ),
    ] = None,
    html: HtmlOption = None,
    json: cli.JsonOption = False,
) -> None:
    """Predict several ranks together: a collective starts when the last rank arrives."""
    from irgraph.predict.options import PredictOptions
    from irgraph.predict.ranks import collective_notes, predict_each_rank, rank_groups
    from irgraph.predict.start_times import draw_start_times, parse_start_times
    from irgraph.schedule.ranks import draw_step_times, simulate_ranks

    graphs = {
        path: cli.with_dim_options(cli.read_typed_model(path), dim)
        for path in dict.fromkeys(models)
    }
    options = PredictOptions(device=device, host=host, ranks=ranks, fabric=fabric)
    predictions = predict_each_rank([graphs[path] for path in models], options)
    start_times = parse_start_times(late or [], len(models))
    timelines = [p.timeline for p in predictions]
    groups = rank_groups([graphs[path] for path in models])
    result = simulate_ranks(timelines, starts=[start.mean for start in start_times], groups=groups)
    _write_traces(result, predictions, groups, timeline, chakra)
    step_samples = None
    if any(start.distribution for start in start_times):
        step_samples = draw_step_times(
            timelines, draw_start_times(start_times, draws, seed), groups=groups
        )
    figures = _figures(models, result, predictions)
    if step_samples is not None:
        figures["step_draws_us"] = _percentiles(step_samples)
    lines = collective_notes(predictions)
    if html is not None:
        from irgraph.cli.html import write_page
        from irgraph.pages.ranks import ranks_page

        write_page(ranks_page(result, figures, lines, predictions), html)
    _show(figures, result, step_samples, lines, json)


def _write_traces(
    result: Ranks,
    predictions: list[Prediction],
    groups: list[dict[str, tuple[int, ...]]],
    timeline: str | None,
    chakra: str | None,
) -> None:
    """Write all ranks for Perfetto, and a Chakra trace of each, if files are named."""
    if timeline is not None:
        from irgraph.schedule.perfetto import write_timeline

        write_timeline(result.timeline, timeline)
    if chakra is not None:
        from irgraph.exchange.chakra import write_rank_traces

        write_rank_traces([(p.timeline, p.priced) for p in predictions], groups, chakra)


def _show(
    figures: dict[str, Any],
    result: Ranks,
    step_samples: Floats | None,
    lines: list[str],
    as_json: bool,
) -> None:
    """Print a row for each rank, the critical path across them, and the straggler."""
    if as_json:
        cli.write_json({"straggler": result.straggler, **figures, "rests_on": lines})
        return
    from irgraph.report.console import bytes_text

    cli.print_error(_step(figures))
    rows = figures["ranks"]
    separate_keys = ("shares_us", "sent_bytes")
    cells = [{k: _cell(k, v) for k, v in row.items() if k not in separate_keys} for row in rows]
    print_rows("ranks", cells)
    path = figures["path"]
    title = f"critical path, {path['hops']} hop{'s' if path['hops'] != 1 else ''}"
    print_rows(title, [{k: _cell(k, v) for k, v in row.items()} for row in path["parts"]])
    count, transfer = len(result.meetings), sum(m.transfer for m in result.meetings) / 1e3
    sent = bytes_text(max(row["sent_bytes"] for row in rows))
    transfer_text = f"{transfer:.3f} ms of transfer, {sent} sent by the rank that sends most"
    cli.print_error(f"{count} collective{'s' if count != 1 else ''}, {transfer_text}")
    if result.in_pairs:
        share = f"{100 * result.bubble:.1f} %"
        cli.print_error(
            f"bubble: devices neither compute nor transfer for {share} of the step, on average"
        )
    if any(result.waiting):
        cli.print_error(f"the others wait longest for rank {result.straggler}")
    if step_samples is not None:
        samples_text = ", ".join(
            f"{k} {v / 1e3:.3f} ms" for k, v in figures["step_draws_us"].items()
        )
        cli.print_error(
            f"step over {len(step_samples)} draws of start times: {samples_text}; tables: at the "
            "mean start times"
        )
    for line in lines:
        cli.print_error(line)


def _step(figures: dict[str, Any]) -> str:
    """Return the step of all ranks with its interval, and shares of device time by provenance."""
    from irgraph.report.console import time_text

    low, high = map(time_text, figures["step_time_interval_us"])
    shares = ", ".join(
        f"{share:.1%} {provenance}" for provenance, share in figures["coverage"].items()
    )
    step = time_text(figures["step_time_us"])
    return f"step of all ranks {step}, 90 % interval {low} to {high}; device time: {shares}"


def _percentiles(step_samples: Floats) -> dict[str, float]:
    import numpy as np

    times = np.percentile(step_samples, PERCENTILES).tolist()
    percentiles = {f"p{n}": time for n, time in zip(PERCENTILES, times, strict=True)}
    return {"mean": float(step_samples.mean()), **percentiles}


def _figures(models: list[str], result: Ranks, predictions: list[Prediction]) -> dict[str, Any]:
    from irgraph.predict.figures import coverage
    from irgraph.predict.ranks import rank_samples
    from irgraph.schedule.rank_path import hops, rank_path, times_by_activity
    from irgraph.schedule.sampling import interval

    path = rank_path(result)
    columns = zip(models, result.steps, result.waiting, result.exposed, result.shares, strict=True)
    return {
        "step_time_us": result.step_time,
        "step_time_interval_us": list(interval(rank_samples(result, predictions))),
        "coverage": coverage(
            kernel for prediction in predictions for kernel in prediction.kernels()
        ),
        **({"bubble": result.bubble} if result.in_pairs else {}),
        "ranks": [
            {
                "rank": rank,
                "model": model,
                "step_us": step,
                "waits_us": wait,
                "exposed_us": exposed,
                "idle_us": shares["idle"],
                "shares_us": dict(shares),
                "sent_bytes": _sent_bytes(predictions[rank]),
            }
            for rank, (model, step, wait, exposed, shares) in enumerate(columns)
        ],
        "path": {
            "hops": hops(path),
            "parts": [
                {
                    "what": activity,
                    "path_us": time,
                    "share": time / result.step_time,
                    "ranks": ",".join(map(str, ranks)),
                }
                for activity, (time, ranks) in times_by_activity(path).items()
            ],
        },
        "collectives": [
            {
                "name": m.name,
                "start_us": m.start,
                "transfer_us": m.transfer,
                "waits_us": list(m.waits),
                "last": m.last,
            }
            for m in result.meetings
        ],
    }


def _sent_bytes(prediction: Prediction) -> float:
    """Return a lower bound of the bytes that a rank sends to others."""
    from irgraph.ir.cost import COLLECTIVE

    return sum(k.link_bytes for k in prediction.kernels() if k.family == COLLECTIVE)


def _cell(name: str, value: float | str) -> str:
    if name == "share":
        return f"{100 * float(value):.1f} %"
    return f"{float(value):.1f}" if name.endswith("_us") else str(value)
