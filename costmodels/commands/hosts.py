"""``irgraph hosts``: the shipped tables of host overheads, and the speed of this machine's host."""

from __future__ import annotations

from typing import Annotated

import typer

from irgraph.cli.common import (
    JsonOption,
    finite_value,
    print_error,
    print_listing,
    show_progress,
    write_json,
)

PANEL = "cost models"


def hosts(
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Time this machine's host instead: one number, in seconds."),
    ] = False,
    beside: Annotated[
        float | None,
        typer.Option(
            metavar="US",
            min=0.001,
            callback=finite_value,
            help="With --measure: the number of a table's host; prints the factor for --host.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """List the shipped tables of host overheads; --json gives whole tables."""
    from irgraph.diagnostics import fail
    from irgraph.overheads import host_rows, host_values

    if beside is not None and not measure:
        raise fail("--beside: a number to compare with needs --measure", exit_code=2)
    if measure:
        _measure(beside, json)
    elif json:
        write_json(host_values())
    else:
        print_listing("hosts", host_rows())


def _measure(other_us: float | None, json: bool) -> None:
    """Time this machine's host, and compare it with another one's number."""
    from msgspec.structs import asdict

    from costmodels.measure.host import LAYERS, measure_host
    from costmodels.measure.run import torch_for

    torch = torch_for("cpu")
    with show_progress("measuring"):
        pace = measure_host(torch)
    factor = None if other_us is None else round(pace.factor(other_us), 3)
    if json:
        write_json({**asdict(pace), **({} if factor is None else {"factor": factor})})
        return
    print_error(
        f"{pace.us:.2f} us a layer of a training step of {LAYERS} small layers "
        f"(+-{pace.spread:.0%} between {pace.rounds} rounds, torch {pace.torch})"
    )
    if factor is None:
        print_error(
            "the ratio of the numbers of two machines, with one release of torch, is the factor of"
        )
        print_error("--host NAME@1.5x: irgraph hosts --measure --beside US prints it")
    else:
        print_error(
            f"use it as: --host NAME@{factor:g}x, for a table of the host where it was {other_us:g}"
        )
