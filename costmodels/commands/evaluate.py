"""``irgraph evaluate``: predicted beside measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from irgraph.cli.common import JsonOption, PlotOption, console, working, write_json

if TYPE_CHECKING:
    from costmodels.evaluate import Evaluation

PANEL = "evaluate"


def evaluate(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="collectives, cpu, dlrm-v100, e2e, gains, kernels, models, modern, steps or "
            "traced (gains, steps: need torch and timm, cpu: torch; minutes)",
        ),
    ],
    plot: PlotOption = None,
    baseline: Annotated[
        bool,
        typer.Option(
            help="kernels, modern: gradient boosting beside (needs scikit-learn; minutes)."
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Put predictions beside published measurements, with signed errors."""
    from costmodels.evaluate import EVALUATIONS, evaluate_kernels, evaluate_modern
    from irgraph.diagnostics import fail, near

    if what not in EVALUATIONS:
        message = f"nothing to evaluate is called {what!r}{near(what, EVALUATIONS)}"
        raise fail(message, hint=f"known: {', '.join(EVALUATIONS)}", exit_code=2)
    boosted: dict[str, Callable[..., Evaluation]] = {
        "kernels": evaluate_kernels,
        "modern": evaluate_modern,
    }
    if baseline and what not in boosted:
        message = "--baseline: gradient boosting stands beside kernels and modern only"
        raise fail(message, exit_code=2)
    with working(f"evaluating {what}"):
        result = boosted[what](baseline=True) if baseline else EVALUATIONS[what]()
    if plot is not None:
        _draw(result, what, plot)
    if json:
        write_json(result.as_json())
        return
    out = console()
    for part in result.render():
        out.print(part)


def _draw(result: Evaluation, what: str, path: str) -> None:
    """Draw errors by workload, or of kernels by size."""
    from costmodels.evaluate.comparison import Comparison
    from costmodels.evaluate.kernels import KernelEvaluation
    from costmodels.evaluate.plot import draw, draw_residuals
    from irgraph.diagnostics import fail

    if isinstance(result, KernelEvaluation):
        draw_residuals(result.residuals, path)
    elif isinstance(result, Comparison):
        draw(result, path)
    else:
        raise fail(f"--plot: {what} has no errors by workload to draw", exit_code=2)
