"""``irgraph evaluate``: predicted beside measured."""

from __future__ import annotations

from typing import Annotated

import typer

from irgraph.cli.common import JsonOption, console, working, write_json


def evaluate(
    what: Annotated[
        str, typer.Argument(metavar="WHAT", help="dlrm-v100, e2e, kernels, models or traced")
    ],
    plot: Annotated[
        str | None, typer.Option(metavar="FILE", help="Draw the errors here (needs matplotlib).")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Put predictions beside published measurements, with signed errors."""
    from irgraph.evaluate import EVALUATIONS
    from irgraph.text.diagnostics import fail, near

    if what not in EVALUATIONS:
        message = f"nothing to evaluate is called {what!r}{near(what, EVALUATIONS)}"
        raise fail(message, hint=f"known: {', '.join(EVALUATIONS)}", exit_code=2)
    with working(f"evaluating {what}"):
        result = EVALUATIONS[what]()
    if plot is not None:
        from irgraph.evaluate.comparison import Comparison
        from irgraph.evaluate.plot import draw

        if not isinstance(result, Comparison):
            raise fail(f"--plot: {what} has no errors by workload to draw", exit_code=2)
        draw(result, plot)
    if json:
        write_json(result.as_json())
        return
    out = console()
    for part in result.render():
        out.print(part)
