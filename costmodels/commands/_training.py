"""Options and checks shared by the commands that train."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from irgraph.cli.common import console

if TYPE_CHECKING:
    from costmodels.learnable.family import LearnedFamily

ONE_CORE = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
"""XLA flags for a single core: sums then have one order, so equal seeds give equal weights."""

DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="FOLDER|FILE",
        help="Measurements: kernels/*.csv.gz, or a file of `irgraph measure`.",
        envvar="IRGRAPH_DATA",
    ),
]
FamilyArgument = Annotated[str, typer.Argument(metavar="FAMILY", help="gemm, conv2d, softmax, …")]


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar if standard error is a terminal; yield the function that advances it."""
    from rich.progress import Progress

    out = console(error=True)
    with Progress(console=out, disable=not out.is_terminal, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda steps: bar.advance(task, steps)


def family_named(name: str) -> LearnedFamily:
    """Return the learned family of a name; refuse an unknown name."""
    from costmodels.families import learned_families
    from irgraph.diagnostics import fail, suggestion

    families = learned_families()
    if name not in families:
        others = [
            candidate.name for candidate in families.values() if name in candidate.measured_as
        ]
        suffix = (
            f"; with kernels/*.csv.gz it is {others[0]!r}" if others else suggestion(name, families)
        )
        message = f"unknown family to train {name!r}{suffix}"
        raise fail(message, hint=f"known: {', '.join(families)}", exit_code=2)
    return families[name]


def folder_of(data: Path | None) -> Path:
    """Return the folder of measurements; refuse a command line without one."""
    from irgraph.diagnostics import fail

    if data is None:
        hint = "give --data FOLDER or set IRGRAPH_DATA"
        raise fail("no folder of measurements", hint=hint, exit_code=2)
    return data


def require(*names: str) -> None:
    """Check that packages are installed, and limit XLA to one core before it starts."""
    from importlib.util import find_spec

    from irgraph.diagnostics import fail

    missing = [name for name in names if find_spec(name) is None]
    if missing:
        hint = "pip install 'irgraph[train]'"
        raise fail(f"training needs {missing[0]}, which is not installed", hint=hint, exit_code=2)
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {ONE_CORE}".strip()
