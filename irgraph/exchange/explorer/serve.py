"""Starts Model Explorer on this machine, with models and overlays loaded.

Its server would read any file that a page asks for, take uploads, and ask the package index for
newer versions; here it answers what the page needs to show what it was started with, to this
machine, and nothing else.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from irgraph.diagnostics import fail
from irgraph.exchange.explorer.model_files import ExplorerModel
from irgraph.exchange.explorer.names import segment

HOST, PORT = "127.0.0.1", 8080

ALLOWED_PATHS = re.compile(
    r"/(?:check_health|apistream/server_director"
    r"|api/v1/(?:get_extensions|load_graphs_json|load_node_data|check_new_version)"
    r"|(?!api)[^?]*)"
)
"""Paths that are answered: the data that it was started with, and the page's own files."""


POLICY = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:"
"""What the page may load, and from where: all of it from here."""


EXTERNAL_RESOURCES = re.compile(r"@font-face\s*\{[^{}]*https:[^{}]*\}|<link[^>]*https:[^>]*>")
"""Fonts and links of other hosts."""


def serve(models: Sequence[ExplorerModel], *, port: int = PORT, browser: bool = True) -> None:
    """Show models until the program is interrupted; two side by side, joined by their nodes' ids.

    Args:
        models: one or two.
        port: where it listens on 127.0.0.1; from 8080 on, the first that is free.
        browser: whether to open it in a browser.

    Raises:
        IrgraphError: Model Explorer is not installed, or the port is taken (exit code 2).
    """
    server = _server()
    if port != PORT:
        _check_free(port)
    server.start(
        host=HOST,
        port=port,
        config=build_configuration(models),
        no_open_in_browser=not browser,
        skip_health_check=True,
    )


def _check_free(port: int) -> None:
    """Refuse a port on which something listens."""
    with socket.socket() as probe:
        if probe.connect_ex((HOST, port)) == 0:
            raise fail(f"--port: {HOST}:{port} is already in use", exit_code=2)


def _server() -> Any:  # noqa: ANN401  (a module that is loaded here)
    """Return Model Explorer's server, kept to what it was started with."""
    try:
        import flask
        from model_explorer import extension_manager, server
    except ImportError:
        hint = "pip install 'irgraph[explorer]'"
        raise fail("this needs Model Explorer", hint=hint, exit_code=2) from None

    class GuardedFlask(flask.Flask):  # type: ignore[misc]  # a class of a package without types
        def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401
            super().__init__(*args, **options)
            self.before_request(lambda: _refusal(flask.request))
            self.after_request(_restrict_to_local)

    server.flask = _PatchedModule(flask, Flask=GuardedFlask)
    unknown = dict.fromkeys(("version", "runningVersion", "releaseUrl", "desktopAppUrl"), "")
    server._check_new_version = lambda print_msg=True: unknown
    # what is shown is converted already
    extension_manager.ExtensionManager.BUILTIN_ADAPTER_MODULES = []
    return server


class _PatchedModule:
    """A module with some of its names replaced."""

    def __init__(self, module: Any, **names: Any) -> None:  # noqa: ANN401
        self._module = module
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._module, name)


def _refusal(request: Any) -> tuple[str, int] | None:  # noqa: ANN401
    """Return why a request is not answered: another host's name, another path, or a change."""
    name = request.host.rpartition(":")[0] or request.host
    if name not in (HOST, "localhost"):
        return "this answers to this machine alone", 403
    if request.method not in ("GET", "HEAD") or not ALLOWED_PATHS.fullmatch(request.path):
        return "this shows what it was started with, and nothing else", 403
    return None


def _restrict_to_local(response: Any) -> Any:  # noqa: ANN401
    """Let the page ask no other host for anything: it names fonts of one, and has others."""
    response.headers["Content-Security-Policy"] = POLICY
    if response.mimetype == "text/html" and response.status_code == 200:
        response.direct_passthrough = False
        response.set_data(EXTERNAL_RESOURCES.sub("", response.get_data(as_text=True)))
    return response


def build_configuration(models: Sequence[ExplorerModel]) -> Any:  # noqa: ANN401  (a class of Model Explorer)
    """Return Model Explorer's configuration: graphs, node data, and which panes show them."""
    from model_explorer.config import ModelExplorerConfig

    class ExplorerConfig(ModelExplorerConfig):  # type: ignore[misc]  # a package without types
        def to_url_param_value(self) -> str:
            data = {
                "models": self.model_sources,
                "nodeData": self.node_data_sources,
                "nodeDataTargets": self.node_data_target_models,
                "uiState": {"paneStates": [_pane(model, len(models)) for model in models]},
            }
            if len(models) > 1:
                data["sync"] = {"mode": "match_node_id"}
            return quote(json.dumps(data))

    configuration = ExplorerConfig()
    for index, model in enumerate(models):
        # without a label of its own, a collection has the name by which it was asked for
        configuration.graphs_list.append(json.dumps({"graphs": model.collection()["graphs"]}))
        name = segment(model.label)
        configuration.model_sources.append({"url": f"graphs://{name}/{index}"})
        for overlay in model.overlays:
            text = json.dumps({model.label: overlay.data()})
            configuration.add_node_data(overlay.name, text, name)
    return configuration


def _pane(model: ExplorerModel, count: int) -> dict[str, Any]:
    return {
        "deepestExpandedGroupNodeIds": [],
        "selectedNodeId": "",
        "selectedGraphId": model.label,
        "selectedCollectionLabel": "",
        "widthFraction": 1 / count,
    }
