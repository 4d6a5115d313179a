"""``irgraph calibrate``: a device sheet from microbenchmarks."""

from __future__ import annotations

from typing import Annotated

import typer

from irgraph.cli.common import TorchDeviceOption, finite_value, writable_path, write_result

PANEL = "cost models"


def calibrate(
    device: TorchDeviceOption = "cuda",
    output: Annotated[
        str,
        typer.Option(
            "-o", "--output", metavar="FILE", help="The sheet; - prints it.", callback=writable_path
        ),
    ] = "-",
    scale: Annotated[
        float,
        typer.Option(
            "--scale", min=0.001, max=1.0, callback=finite_value, help="Below 1: a quick look."
        ),
    ] = 1.0,
) -> None:
    """Measure a device and write its sheet, for ``--device FILE``."""
    from costmodels.measure.calibrate import calibrate as run
    from costmodels.measure.calibrate import to_json
    from costmodels.measure.run import torch_for

    write_result(to_json(run(torch_for(device), device, scale=scale)), output)
