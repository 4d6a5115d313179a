"""``irgraph advise``: the passes that would make a step faster, ranked by their predicted gain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from irgraph.cli import common as cli

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from irgraph.manage.advice import Advice, PassGain

PANEL = "transform"

ScriptOption = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Write a script of the best combination here, for `irgraph opt -s`.",
        callback=lambda path: cli.writable_path(path),
    ),
]


def advise(
    model: cli.ModelArgument,
    device: cli.CardOption = None,
    host: cli.HostOption = "default",
    dim: cli.DimOption = None,
    ranks: cli.RanksOption = None,
    fabric: cli.FabricOption = None,
    pass_path: cli.PassPathOption = None,
    output: ScriptOption = None,
    json: cli.JsonOption = False,
) -> None:
    """Try every pass of the library and rank what each would save, alone and combined."""
    from irgraph.manage.advice import advise as run
    from irgraph.manage.run import check_folders
    from irgraph.predict.options import PredictOptions

    folders = tuple(pass_path or ())
    check_folders(folders)
    graph = cli.with_dim_options(cli.read_typed_model(model), dim)
    graph = cli.with_rank_options(graph, ranks, fabric)
    advice = run(graph, PredictOptions(device=device, host=host), pass_path=folders)
    if output is not None:
        cli.write_result(advice.script, output)
    if json:
        cli.write_json(advice.summary())
    else:
        _show(advice, model, folders)


def _show(advice: Advice, model: str, folders: Sequence[str]) -> None:
    from irgraph.predict.answer import answer
    from irgraph.predict.validation import UNVALIDATED

    out = cli.console()
    out.print(next(answer(advice.before.summary())))
    for line in advice.before.warnings:
        out.print(f"warning: {line}", style="red")
    preserving = [gain for gain in advice.gains if not gain.changes_results]
    changing = [gain for gain in advice.gains if gain.changes_results]
    if not preserving:
        out.print("\nNo pass of the library that preserves results makes the step faster.")
    for title, gains in (("preserves results", preserving), ("changes results", changing)):
        if gains:
            out.print()
            _print_table(title, gains)
    _print_combination(advice, model, folders)
    out.print(f"\n{UNVALIDATED}")


def _print_table(title: str, gains: Iterable[PassGain]) -> None:
    from rich.table import Table

    from irgraph.predict.tables import BRIEF
    from irgraph.report.console import rounded_times

    table = Table(title, "saves", "step", "legality", **BRIEF)
    for gain in gains:
        saved, before = gain.saved, gain.difference.before.step_time
        low, high = gain.summary()["saved_interval_us"]
        table.add_row(
            gain.name,
            rounded_times(saved, low, high),
            f"{-saved / before:+.1%}",
            gain.legality,
        )
    cli.console().print(table)


def _print_combination(advice: Advice, model: str, folders: Sequence[str]) -> None:
    import shlex

    from irgraph.report.console import rounded_times

    if advice.combined is None:
        return
    combined = advice.combined.after
    share = advice.combined.step_time_change / advice.before.step_time
    passes = ", ".join(advice.order)
    out = cli.console()
    times = rounded_times(combined.step_time, *combined.interval)
    out.print(f"\nCombined {times}, {share:+.0%}: {passes}.")
    words = ["--pass", passes, *(word for folder in folders for word in ("--pass-path", folder))]
    command = shlex.join(["irgraph", "opt", *words, "--check", model, "-o", "faster.ir"])
    out.print(f"Next: {command}", soft_wrap=True)
