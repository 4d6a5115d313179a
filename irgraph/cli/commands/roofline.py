"""``irgraph roofline``: operations and bytes of the calls of a step, and the limit of each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from irgraph.cli.common import (
    CsvOption,
    DimOption,
    FormulasOption,
    JsonOption,
    read_typed_model,
    with_dim_options,
    write_csv,
    write_json,
)
from irgraph.cli.traces import TraceOptions, print_rows, repair_exit_code

if TYPE_CHECKING:
    from irgraph.backend import DeviceFacts
    from irgraph.capture.kineto.events.tree import Tree
    from irgraph.report.roofline import CallWork

PANEL = "traces"

TITLES = {
    "shape": "products, convolutions and attention by shape",
    "op": "device work by operator",
    "kernel": "device work by kernel",
}


def roofline(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...", help="A model, whose step is predicted, or Kineto traces."
        ),
    ],
    device: Annotated[
        str | None,
        typer.Option(
            "--device", metavar="NAME|FILE", help="A device sheet (default: the trace's card)."
        ),
    ] = None,
    longest: Annotated[int, typer.Option(min=1, help="Rows of each table.")] = 12,
    dim: DimOption = None,
    software: Annotated[
        str, typer.Option("--software", metavar="NAME", help="Software stack of a prediction.")
    ] = "torch-2",
    formulas: FormulasOption = False,
    *,
    reading: TraceOptions,
    csv: CsvOption = None,
    json: JsonOption = False,
) -> None:
    """Show FLOP, bytes, TFLOP/s, TB/s and share of the device's limit, by shape, op and kernel."""
    trees: list[Tree] = []
    if _is_model(files):
        works, sheet, count, footnotes = _predicted_works(files[0], device, dim, software, formulas)
    else:
        trees = reading.trees(files)
        works, sheet, count, footnotes = _measured_works(trees, device)
    tables = _tables(works, sheet, count)
    if csv is not None:
        write_csv(tables, csv)
    if json:
        name = sheet.name if sheet is not None else None
        write_json({"device": name, **tables, "notes": footnotes})
    elif csv is None:
        _show(tables, footnotes, longest)
    raise typer.Exit(repair_exit_code(trees))


def _is_model(files: Sequence[str]) -> bool:
    from irgraph.capture.common.source import Source

    if len(files) > 1 or files[0] == "-":
        return False
    with Source(files[0]) as source:
        return not source.path.is_dir() and re.search(rb'^model "', source.text, re.M) is not None


def _predicted_works(
    path: str, device: str | None, dim: list[str] | None, software: str, formulas: bool
) -> tuple[list[CallWork], DeviceFacts | None, int, list[str]]:
    from irgraph.backend import backend
    from irgraph.predict.options import PredictOptions
    from irgraph.predict.prediction import device_of
    from irgraph.predict.roofline import works_of

    graph = with_dim_options(read_typed_model(path), dim)
    name = device or device_of(graph)
    sheet = backend().device(name, graph)
    options = PredictOptions(device=name, software=software, measured=not formulas)
    priced = backend().price(graph, name, options)
    footnotes = [f"times are predicted for {sheet.name}, or measured where the model has them"]
    if priced.unknown:
        footnotes.append(f"{len(priced.unknown)} calls have no cost model: their time is not known")
    return works_of(priced, sheet), sheet, 1, footnotes


def _measured_works(
    trees: Sequence[Tree], device: str | None
) -> tuple[list[CallWork], DeviceFacts | None, int, list[str]]:
    from irgraph.analyze.roofline import works_of
    from irgraph.backend import backend

    cards = sorted({tree.trace.device_name for tree in trees})
    names = {device} if device else {backend().device_of_card(card) for card in cards}
    sheet = backend().device(names.pop()) if len(names) == 1 and "" not in names else None
    footnotes = [reason for tree in trees for reason in tree.trace.health.reasons()]
    if sheet is None:
        card_names = (
            ", ".join(map(repr, filter(None, cards))) or "a device that the trace does not name"
        )
        footnotes.append(f"limits of {card_names} are not known: name its sheet with --device")
    else:
        footnotes.append(f"limits: {sheet.name}")
    works, steps = works_of(trees)
    return works, sheet, steps, footnotes


def _tables(
    works: list[CallWork], sheet: DeviceFacts | None, steps: int
) -> dict[str, list[dict[str, Any]]]:
    from irgraph.report.roofline import GROUPINGS, kernels_by_operator, uncounted_operators
    from irgraph.report.roofline import roofline as rows_of

    total = sum(work.time for work in works) / max(1, steps)
    tables = {
        grouping: [
            row.row(grouping, total) for row in rows_of(works, grouping, sheet, max(1, steps))
        ]
        for grouping in GROUPINGS
    }
    kernels = kernels_by_operator(works, max(1, steps))
    return {**tables, "op_kernels": kernels, "uncounted": uncounted_operators(works, max(1, steps))}


def _show(tables: dict[str, list[dict[str, Any]]], footnotes: list[str], longest: int) -> None:
    for grouping, title in TITLES.items():
        print_rows(title, [_cells(row, grouping) for row in tables[grouping][:longest]])
    missing = tables["uncounted"]
    lines = []
    if missing:
        time, calls = (sum(row[key] for row in missing) for key in ("us", "calls"))
        device_us = sum(row["us"] for row in tables["op"]) or 1.0
        lines.append(
            f"without a count of operations or bytes: {calls:.0f} calls of {len(missing)} "
            f"operators, {time:.1f} us a step, {time / device_us:.1%} of the device work"
        )
    rows = [{k: str(v) for k, v in row.items()} for row in missing[:longest]]
    print_rows("calls without a count", rows, [*lines, *footnotes])
    if not missing:
        from irgraph.cli.common import print_error

        for line in footnotes:
            print_error(line)


def _cells(row: dict[str, Any], grouping: str) -> dict[str, str]:
    from irgraph.report.roofline import SPREAD

    def text(key: str, form: str) -> str:
        return "-" if row[key] is None else format(row[key], form)

    return {
        grouping: row[grouping][:90],
        "calls": f"{row['calls']:g}",
        "us a step": text("us", ".1f"),
        "us a call": " / ".join(format(row[key], ".1f") for key in SPREAD),
        "share": text("share", ".1%"),
        "GFLOP": text("gflop", ".3f"),
        "MB": text("mbyte", ".2f"),
        "TFLOP/s": text("tflop_s", ".2f"),
        "TB/s": text("tb_s", ".3f"),
        "of peak": text("of_peak", ".1%"),
        "of bandwidth": text("of_bandwidth", ".1%"),
        "of its limit": text("of_limit", ".1%"),
        "bound by": row["bound"] or "-",
    }
