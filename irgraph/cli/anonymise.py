"""``irgraph anonymise``: traces without names, paths and hosts."""

from __future__ import annotations

from typing import Annotated

import typer

from irgraph.cli.common import say, working


def anonymise(
    traces: Annotated[
        list[str], typer.Argument(metavar="TRACE...", help="Kineto and execution traces.")
    ],
    folder: Annotated[
        str, typer.Option("-o", "--output", metavar="FOLDER", help="Where the copies go.")
    ],
) -> None:
    """Take names, paths, hosts and call stacks out of traces; times and shapes stay."""
    from irgraph.capture.kineto.anonymise import anonymise as run

    with working("anonymising"):
        written = run(traces, folder)
    for source, target in zip(traces, written, strict=True):
        say(f"{source} -> {target}")
