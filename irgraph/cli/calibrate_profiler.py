"""``irgraph calibrate-profiler``: what the profiler itself costs on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from irgraph.cli.common import JsonOption, say, working, write_json


def calibrate_profiler(
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 …")] = "cpu",
    json: JsonOption = False,
) -> None:
    """Measure what the profiler adds to each event, for `irgraph overheads --profiler`."""
    from irgraph.capture.kineto.calibrate import calibrate_profiler as run

    with working("calibrating"):
        host, launch = run(device)
    if json:
        write_json({"host_us": round(host, 3), "device_us": round(launch, 3)})
        return
    say(f"{host:.2f} us a host event, {launch:.2f} us more a launch")
    say(f"use it as: irgraph overheads TRACE --profiler {host:.2f},{launch:.2f}")
