"""``irgraph evaluate``: predictions compared with measurements."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from irgraph.cli.common import JsonOption, PlotOption, console, show_progress, write_json

if TYPE_CHECKING:
    from costmodels.evaluate import Evaluation

PANEL = "evaluate"


def evaluate(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="collectives, cpu, dlrm-v100, e2e, gains, hosts, intervals, kernels, llm, "
            "models, modern, steps, swept, tiers, timed or traced (gains, steps: need torch and "
            "timm, timed: torch and torchvision, cpu, llm, swept: torch; minutes)",
        ),
    ],
    plot: PlotOption = None,
    baseline: Annotated[
        bool,
        typer.Option(
            help="kernels, modern: also show gradient boosting (needs scikit-learn; minutes)."
        ),
    ] = False,
    models: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="steps: number of timm models, in training and in inference (default: 20, 12).",
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER", help="llm, steps, timed: keep captured programs in this folder."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Compare predictions with published measurements, with signed errors."""
    with show_progress(f"evaluating {what}"):
        result = _run_evaluation(what, baseline, models, keep)
    if plot is not None:
        _draw(result, what, plot)
    if json:
        write_json(result.as_json())
        return
    out = console()
    for part in result.render():
        out.print(part)


def _run_evaluation(name: str, baseline: bool, models: int | None, keep: str | None) -> Evaluation:
    """Run an evaluation by its name and return it; refuse options that it does not support."""
    from costmodels.evaluate import (
        EVALUATIONS,
        evaluate_kernels,
        evaluate_llm,
        evaluate_modern,
        evaluate_steps,
        evaluate_timed,
    )
    from costmodels.evaluate.whole.program_cache import folder_for
    from irgraph.diagnostics import fail, suggestion

    if name not in EVALUATIONS:
        message = f"nothing to evaluate is called {name!r}{suggestion(name, EVALUATIONS)}"
        raise fail(message, hint=f"known: {', '.join(EVALUATIONS)}", exit_code=2)
    evaluate_with_baseline: dict[str, Callable[..., Evaluation]] = {
        "kernels": evaluate_kernels,
        "modern": evaluate_modern,
    }
    if baseline and name not in evaluate_with_baseline:
        message = "--baseline: gradient boosting stands beside kernels and modern only"
        raise fail(message, exit_code=2)
    if name != "steps" and models is not None:
        raise fail("--models: only the programs of steps are chosen", exit_code=2)
    if name not in ("llm", "steps", "timed") and keep is not None:
        raise fail("--keep: only the programs of llm, steps and timed are kept", exit_code=2)
    if name == "llm":
        return evaluate_llm(folder_for(keep))
    if name == "steps":
        return evaluate_steps(models, folder_for(keep))
    if name == "timed":
        return evaluate_timed(keep=folder_for(keep))
    return evaluate_with_baseline[name](baseline=True) if baseline else EVALUATIONS[name]()


def _draw(result: Evaluation, name: str, path: str) -> None:
    """Draw errors by workload, or for kernels by size."""
    from costmodels.evaluate.comparison import Comparison
    from costmodels.evaluate.kernels import KernelEvaluation
    from costmodels.evaluate.plot import draw, draw_residuals
    from irgraph.diagnostics import fail

    if isinstance(result, KernelEvaluation):
        draw_residuals(result.residuals, path)
    elif isinstance(result, Comparison):
        draw(result, path)
    else:
        raise fail(f"--plot: {name} has no errors by workload to draw", exit_code=2)
