"""``irgraph anonymise``: traces and models without names, paths and hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from irgraph.cli.common import print_error, read_model, show_progress

PANEL = "traces"


def anonymise(
    traces: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Kineto traces, execution traces, models (.ir)."),
    ],
    folder: Annotated[
        str, typer.Option("-o", "--output", metavar="FOLDER", help="Where the copies go.")
    ],
    key: Annotated[
        str,
        typer.Option(
            "--hash",
            metavar="KEY",
            help="Replace names by hashes instead of numbers. Equal keys give equal hashes in all "
            "files, so choose a key that nobody can guess.",
        ),
    ] = "",
) -> None:
    """Remove names, paths, hosts and call stacks from traces and models; times and shapes stay."""
    from irgraph.anonymise.traces import anonymise as run

    models = [path for path in traces if path.endswith((".ir", ".ir.gz"))]
    others = [path for path in traces if path not in models]
    with show_progress("anonymising"):
        targets = run(others, folder, key=key)
    for number, path in enumerate(models, 1):
        targets.append(_model(path, folder, number, key))
    for source, target in zip([*others, *models], targets, strict=True):
        print_error(f"{source} -> {target}")


def _model(path: str, folder: str, number: int, key: str) -> Path:
    from irgraph.anonymise.models import anonymous_graph
    from irgraph.anonymise.renaming import Anonymiser
    from irgraph.files import write_atomic
    from irgraph.text import print_graph

    target = Path(folder) / f"model{number}.ir"
    write_atomic(str(target), print_graph(anonymous_graph(read_model(path), Anonymiser(key))))
    return target
