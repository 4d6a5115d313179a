"""``irgraph calibrate-profiler``: the cost of the profiler itself on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from irgraph.cli.common import JsonOption, print_error, show_progress, write_json

PANEL = "traces"


def calibrate_profiler(
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 …")] = "cpu",
    json: JsonOption = False,
) -> None:
    """Measure what the profiler adds to each event, for `irgraph overheads --profiler`."""
    from irgraph.capture.recording.calibrate import calibrate_profiler as run

    with show_progress("calibrating"):
        host, launch = run(device)
    if json:
        device_us = None if launch is None else round(launch, 3)
        write_json({"host_us": round(host, 3), "device_us": device_us})
        return
    if launch is None:
        from irgraph.overheads.extract import PAPER_COST

        print_error(f"{host:.2f} us per host event; launches: not measured, as a CPU has none")
        print_error(
            f"use it as: irgraph overheads TRACE --profiler {host:.2f},{PAPER_COST.device:g} (the "
            f"paper's {PAPER_COST.device:g} us for a launch), or measure with --device cuda"
        )
        return
    print_error(f"{host:.2f} us per host event, {launch:.2f} us more per launch")
    print_error(f"use it as: irgraph overheads TRACE --profiler {host:.2f},{launch:.2f}")
