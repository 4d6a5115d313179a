"""``irgraph quantize``: formats for tables and layers, within a budget of accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from irgraph.cli import common as cli
from irgraph.cli.html import HtmlOption
from irgraph.cli.traces import print_rows

if TYPE_CHECKING:
    from irgraph.precision.measure import Errors, PrecisionBench
    from irgraph.precision.report import SearchResult

PANEL = "transform"

BudgetOption = Annotated[
    str,
    typer.Option(
        "--budget",
        metavar="KL",
        help="Allowed divergence of predictions: 0.02% of their entropy, or 1e-4 in nats.",
    ),
]
DataOption = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="FILE.pt|FILE.py:NAME",
        help="Parameters and batches: a torch.save file of tensors, or a function that returns "
        "them, which runs its code.",
    ),
]
AimOption = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="WHAT",
        help="What to reduce: time, active, parameters, links.",
        show_default="time",
    ),
]
PlaceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--place",
        metavar="TABLES on TIER",
        help='Where tables are placed in service, as in `place`: \'"*" on "uvm"\' (repeatable).',
    ),
]
FormatsOption = Annotated[
    str | None,
    typer.Option("--formats", metavar="LIST", help="Try only these formats, as in i8,i4."),
]
OutputNameOption = Annotated[
    str,
    typer.Option(
        "--output-name", metavar="TENSOR", help="Tensors that hold the predictions, as in a,b."
    ),
]
PlanOption = Annotated[
    str | None,
    typer.Option(
        "--plan", metavar="FILE.irg", help="Only measure this plan; exit with 1 if over the budget."
    ),
]
LimitOption = Annotated[
    float,
    typer.Option(
        "--limit", min=0, callback=cli.finite_value, help="Memory limit of an execution, GiB."
    ),
]


def quantize(
    model: cli.ModelArgument,
    budget: BudgetOption,
    data: DataOption = None,
    aim: AimOption = None,
    place: PlaceOption = None,
    formats: FormatsOption = None,
    output_name: OutputNameOption = "",
    plan: PlanOption = None,
    limit: LimitOption = 2.0,
    device: cli.CardOption = None,
    host: cli.HostOption = "default",
    dim: cli.DimOption = None,
    output: cli.OutputOption = None,
    html: HtmlOption = None,
    json: cli.JsonOption = False,
) -> None:
    """Search formats for tables and layers: the fastest step within an accuracy budget.

    Accuracy is measured by running torch on the data; times are simulated. --plan measures a plan
    again on fresh batches, with exit code 1 if it is over the budget. -o writes the plan as a
    script, or with --plan the measurement.
    """
    from irgraph.diagnostics import fail
    from irgraph.precision.candidates import candidates
    from irgraph.precision.data import random_batch, read_data
    from irgraph.precision.measure import AIMS, PrecisionBench
    from irgraph.precision.option_values import read_budget, read_formats
    from irgraph.precision.report import find_plan
    from irgraph.predict.options import PredictOptions
    from irgraph.predict.prediction import device_of

    objective = AIMS[0] if aim is None else aim
    if objective not in AIMS:
        raise fail(f"--for: expected one of {', '.join(AIMS)}, not {objective!r}", exit_code=2)
    search_options = {"--html": html, "--for": aim, "--formats": formats, "--place": place}
    for name, value in search_options.items():
        if plan is not None and value is not None:
            raise fail(f"{name} applies to a search: --plan only measures", exit_code=2)
    graph = cli.with_dim_options(cli.read_typed_model(model), dim)
    chosen_formats = [] if formats is None else read_formats(formats)
    bench_data = random_batch(graph) if data is None else read_data(data, graph)
    table_candidates = [] if plan else candidates(graph, chosen_formats, device or device_of(graph))
    options = PredictOptions(device=device, host=host)
    cli.print_step_notes(graph, host)
    bench = PrecisionBench(
        graph, table_candidates, bench_data, options, output_name, int(limit * 2**30), place or ()
    )
    max_divergence = read_budget(budget, bench)
    if plan is not None:
        _monitor(bench, plan, max_divergence, output, json)
        return
    result = find_plan(bench, max_divergence, objective)
    if output is not None:
        cli.write_result(result.script, output)
    if html is not None:
        _report(result, bench, objective, html)
    _show(result, bench, output, json)


def _monitor(
    bench: PrecisionBench, plan: str, limit: float, output: str | None, as_json: bool
) -> None:
    """Measure a plan on the data and write the result; exit with 1 if it is over the budget."""
    from irgraph.diagnostics import fail, json_text
    from irgraph.files import read_text
    from irgraph.language import load_script, run

    rewritten = run(load_script(read_text(plan), plan), bench.graph)
    for entry in rewritten.report.entries:
        if not entry.changed:
            hint = "is it a plan of this model?"
            raise fail(f"the plan does not fit: {entry}", hint=hint, exit_code=2)
        if entry.refused:
            cli.print_error(str(entry))
    if not rewritten.report.entries:
        cli.print_error("the plan is empty: nothing is changed")
    errors = bench.compare(rewritten.graph)
    over = errors.kl > limit
    if as_json:
        figures = {**_errors(errors), **_compared_names(bench), "budget": limit, "over": over}
        text = json_text(figures, indent=2) + "\n"
    else:
        verdict = "over" if over else "within"
        lines = (
            predictions_text(bench),
            _errors_text(errors),
            f"{verdict} the budget of {limit:.3g} nats",
        )
        text = "\n".join(lines) + "\n"
    cli.write_result(text, output)
    if over:
        raise typer.Exit(1)


def _compared_names(bench: PrecisionBench) -> dict[str, Any]:
    """Return the names of the predictions that are compared, and of the others."""
    return {
        "predictions": list(bench.logits),
        "not_compared": list(bench.prediction_tensors.not_compared),
    }


def _errors(errors: Errors) -> dict[str, Any]:
    labels = {} if errors.rise is None else {"rise": errors.rise[0], "rise_error": errors.rise[1]}
    return {"kl": errors.kl, "kl_share": errors.share, "logits_l2": errors.logits, **labels}


def _errors_text(errors: Errors) -> str:
    share = f"{100 * errors.share:.3g}% of the predictions' entropy"
    text = f"KL {errors.kl:.3g} nats, {share}; logits differ by {errors.logits:.3g} (L2)"
    if errors.rise is not None:
        text += f"; log loss on labels {errors.rise[0]:+.2e} +- {errors.rise[1]:.1e}"
    return text


def _report(result: SearchResult, bench: PrecisionBench, aim: str, path: str) -> None:
    from irgraph.cli.html import write_page
    from irgraph.pages.quantization import quantized_page
    from irgraph.predict.difference import Difference

    step = Difference(bench.prediction({}), bench.prediction(result.plan))
    source, refused = f"{bench.data.source}; {predictions_text(bench)}", _refusals(bench)
    write_page(quantized_page(result, step, aim=aim, data=source, refused=refused), path)


def _refusals(bench: PrecisionBench) -> dict[str, dict[str, str]]:
    return {
        candidate.name: dict(candidate.refused)
        for candidate in bench.candidates
        if candidate.refused
    }


def _show(result: SearchResult, bench: PrecisionBench, output: str | None, as_json: bool) -> None:
    refused = _refusals(bench)
    if as_json:
        about = {
            "data": bench.data.source,
            "budget": result.budget,
            "sum_of_kl": result.separate_kl,
            "added_kl": result.additive_kl,
            **_compared_names(bench),
        }
        cli.write_json(
            {
                **about,
                **_errors(result.errors),
                "script": result.script,
                "rows": list(result.rows),
                "figures": result.figures,
                "refused": refused,
                "search": list(result.messages),
            }
        )
        return
    links = result.figures["before"]["link_bytes"] > 0
    print_rows("formats, each alone", [_cells(row, links) for row in result.rows])
    for line in _lines(result, bench, refused):
        cli.print_error(line)
    if output is None:
        cli.write_result(result.script, None)


def predictions_text(bench: PrecisionBench) -> str:
    """Return a line on the compared predictions and on results of the step not compared."""
    names = ", ".join(f"%{name}" for name in bench.logits)
    not_compared = ", ".join(f"%{name}" for name in bench.prediction_tensors.not_compared)
    constant = ", ".join(f"%{name}" for name in bench.constant_predictions())
    text = f"predictions: {names}" + (
        f"; not compared: {not_compared} (--output-name)" if not_compared else ""
    )
    return text + (
        f"; the same for all samples, so errors hardly show: {constant}" if constant else ""
    )


def _cells(row: dict[str, Any], links: bool) -> dict[str, str]:
    """Return a format as cells; with ``links`` there is a column for savings over links."""
    links_cell = {"over links": f"{row['link_bytes'] / 1024:.1f}"} if links else {}
    return {
        "parameter": row["parameter"],
        "format": row["format"],
        "SQNR": f"{row['sqnr_db']:.1f} dB",
        "L2": f"{row['l2']:.2g}",
        "KL": f"{row['kl']:.2g}",
        "of entropy": f"{row['kl_share']:.2g}",
        "step, us less": f"{row['step_us']:.1f}",
        "active": f"{row['active_us']:.1f}",
        "KiB less": f"{row['bytes'] / 1024:.1f}",
        **links_cell,
        "": "chosen" if row["chosen"] else "",
    }


def _lines(
    result: SearchResult, bench: PrecisionBench, refused: dict[str, dict[str, str]]
) -> list[str]:
    before, after = result.figures["before"], result.figures["after"]
    low, high = after["step_interval_us"]
    lines = [
        f"data: {bench.data.source}",
        predictions_text(bench),
        *result.messages,
        _errors_text(result.errors),
    ]
    lines.append(
        f"errors added up would be {result.additive_kl:.3g}, KL alone summed "
        f"{result.separate_kl:.3g}, budget {result.budget:.3g} nats"
    )
    step = f"step {before['step_us']:.1f} to {after['step_us']:.1f} us ({low:.1f} to {high:.1f})"
    active = f"device {before['active_us']:.1f} to {after['active_us']:.1f} us"
    size = [figures["parameter_bytes"] / 2**20 for figures in (before, after)]
    links = [figures["link_bytes"] / 2**20 for figures in (before, after)]
    links_text = f", over links {links[0]:.3g} to {links[1]:.3g} MiB" if links[0] else ""
    lines.append(f"{step}, {active}, parameters {size[0]:.3g} to {size[1]:.3g} MiB{links_text}")
    lines += _untried_lines(refused)
    if not result.plan:
        lines.append("nothing chosen: no format gains anything within the budget")
    return lines


def _untried_lines(refused: dict[str, dict[str, str]]) -> list[str]:
    """Return a line for each reason of refusals, with its formats and parameters."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, reason_by_format in refused.items():
        for refusal in dict.fromkeys(reason_by_format.values()):
            kinds = ", ".join(
                number_format
                for number_format, other_reason in reason_by_format.items()
                if other_reason == refusal
            )
            groups.setdefault((kinds, refusal), []).append(name)
    return [
        f"not tried: {', '.join(names)} in {kinds}: {reason}"
        for (kinds, reason), names in groups.items()
    ]
