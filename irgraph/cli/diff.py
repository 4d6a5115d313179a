"""``irgraph diff``: what changed between two models, and what it is worth."""

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
    with_dim_options,
    write_json,
)
from irgraph.cli.predict import ModeOption, PinnedOption, SoftwareOption


def diff(
    before: ModelArgument,
    after: Annotated[str, typer.Argument(metavar="OTHER", help="The model to compare with it.")],
    device: DeviceOption = "v100",
    host: HostOption = "v100",
    dim: DimOption = None,
    mode: ModeOption = "corrected",
    software: SoftwareOption = "torch-2",
    pinned: PinnedOption = None,
    json: JsonOption = False,
) -> None:
    """Compare two models: ops added and removed, predicted times and critical paths."""
    from irgraph.predict import predict
    from irgraph.report.difference import compare, difference_tables

    first, second = (with_dim_options(read_model(path), dim) for path in (before, after))
    predictions = [
        predict(graph, device, host, mode=mode, software=software, pinned=pinned)
        for graph in (first, second)
    ]
    result = compare(predictions[0], predictions[1])
    if json:
        write_json(result)
        return
    out = console()
    for table in difference_tables(result):
        out.print(table)
