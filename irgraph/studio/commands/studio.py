"""``irgraph studio``: edit a step by looking."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from irgraph.cli import common as cli

if TYPE_CHECKING:
    from irgraph import Graph, PredictOptions
    from irgraph.studio.app import Studio

PANEL = "transform"


def studio(
    model: cli.ModelArgument,
    device: cli.CardOption = None,
    host: cli.HostOption = "default",
    dim: cli.DimOption = None,
    ranks: cli.RanksOption = None,
    fabric: cli.FabricOption = None,
    pass_path: cli.PassPathOption = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1 (0: any that is free).")
    ] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open it in a browser.")
    ] = True,
) -> None:
    """Edit a step in the browser: passes, statements, what they change, step time."""
    from irgraph import PredictOptions

    graph = cli.with_dim_options(cli.read_typed_model(model), dim)
    options = PredictOptions(device=device, host=host, ranks=ranks, fabric=fabric)
    page_studio = _build_studio(graph, options, tuple(pass_path or ()), model)
    from irgraph.studio.serve import serve

    serve(page_studio, port=port, browser=browser, announce=cli.print_error)


def _build_studio(
    graph: Graph, options: PredictOptions, pass_path: tuple[str, ...], path: str
) -> Studio:
    """Return the studio of a model; it writes its files into the current folder."""
    try:
        import uvicorn  # noqa: F401

        from irgraph.studio.app import Studio
    except ImportError:
        from irgraph.diagnostics import fail

        hint = "pip install 'irgraph[studio]'"
        raise fail("this needs starlette and uvicorn", hint=hint, exit_code=2) from None
    from irgraph.studio.session import Session

    session = Session(graph, options, pass_path)
    prediction = session.first.prediction
    about = f"predicted on {prediction.sheet.name}, host {prediction.host.name}"
    title = graph.name if path == "-" else f"{graph.name} ({Path(path).name})"
    return Studio(session, (title, about), graph.name, Path.cwd())
