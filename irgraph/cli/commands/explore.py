"""``irgraph explore``: a model as a graph, in Google's Model Explorer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from irgraph.cli import common as cli

if TYPE_CHECKING:
    from irgraph.exchange.explorer.model_files import ExplorerModel
    from irgraph.predict.prediction import Prediction

PANEL = "models"


def explore(
    model: cli.ModelArgument,
    other: Annotated[
        str | None,
        typer.Argument(metavar="[OTHER]", help="A model to show beside it: after a rewrite."),
    ] = None,
    device: cli.CardOption = None,
    host: cli.HostOption = "default",
    dim: cli.DimOption = None,
    ranks: cli.RanksOption = None,
    fabric: cli.FabricOption = None,
    json: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Write the graph here, with a file beside it for each overlay; start no server.",
            callback=lambda path: cli.writable_path(path),
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on 127.0.0.1.")] = 8080,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open it in a browser.")
    ] = True,
) -> None:
    """Show a model in Model Explorer, by phase, module and call, coloured by a prediction."""
    from irgraph.predict.prediction import device_of, predict

    graphs = [
        cli.with_dim_options(cli.read_typed_model(path), dim) for path in (model, other) if path
    ]
    card = device or device_of(*graphs)
    predictions = [
        predict(graph, device=card, host=host, ranks=ranks, fabric=fabric) for graph in graphs
    ]
    for line in dict.fromkeys(line for prediction in predictions for line in prediction.warnings):
        cli.print_error(f"WARNING: {line}")
    explorer_models = _explorer_models(predictions)
    if json is not None:
        from irgraph.exchange.explorer.model_files import write_json

        for path in write_json(explorer_models, json):
            cli.print_error(f"wrote {path}")
        return
    from irgraph.exchange.explorer.serve import serve

    serve(explorer_models, port=port, browser=browser)


def _explorer_models(predictions: list[Prediction]) -> list[ExplorerModel]:
    """Return models with their overlays; two models also have an overlay of their changes."""
    from irgraph.exchange.explorer.model_files import ExplorerModel
    from irgraph.exchange.explorer.overlays import changes, overlays

    overlays_by_model = [overlays(p.priced, p.timeline, p.path) for p in predictions]
    graphs = [p.priced.graph for p in predictions]
    names = [graph.name for graph in graphs]
    if len(graphs) == 2:
        from irgraph.report.structure import structural_diff

        rows = [(c.kind, c.before, c.after) for c in structural_diff(graphs[0], graphs[1])]
        for model_overlays, change in zip(
            overlays_by_model, changes(graphs[0], graphs[1], rows), strict=True
        ):
            model_overlays.append(change)
        names = [f"{name} ({when})" for name, when in zip(names, ("before", "after"), strict=True)]
    return [ExplorerModel(*fields) for fields in zip(names, graphs, overlays_by_model, strict=True)]
