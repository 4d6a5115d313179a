"""Starts Model Explorer on this machine, with models and overlays loaded.

Model Explorer's server would read any file that a page requests, accept uploads, and query the
package index for newer versions. Here it only serves the page and the data with which it was
started, and only to this machine.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Sequence
from contextlib import suppress
from threading import Timer
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
"""Paths that are served: the data with which the server was started, and the page's own files."""


MAX_SECONDS = 10
"""Maximum time in seconds in which a request must arrive."""

POLICY = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:"
"""Content security policy of the page: it may only load from this server."""


EXTERNAL_RESOURCES = re.compile(r"@font-face\s*\{[^{}]*https:[^{}]*\}|<link[^>]*https:[^>]*>")
"""Fonts and links in a page that refer to other hosts."""


def serve(models: Sequence[ExplorerModel], *, port: int = PORT, browser: bool = True) -> None:
    """Show one model, or two next to each other linked by node ids, until interrupted.

    Args:
        models: one or two.
        port: on 127.0.0.1; with the default, the first free port from 8080 on.
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
    """Raise an error if another program listens on a port."""
    with socket.socket() as probe:
        if probe.connect_ex((HOST, port)) == 0:
            raise fail(f"--port: {HOST}:{port} is already in use", exit_code=2)


def _server() -> Any:  # noqa: ANN401  (a module that is loaded here)
    """Return Model Explorer's server, restricted to the data with which it was started."""
    try:
        import flask
        from model_explorer import extension_manager, server
        from werkzeug import serving
    except ImportError:
        hint = "pip install 'irgraph[explorer]'"
        raise fail("this needs Model Explorer", hint=hint, exit_code=2) from None

    class GuardedFlask(flask.Flask):  # type: ignore[misc]  # a class of a package without types
        def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401
            super().__init__(*args, **options)
            self.before_request(lambda: _refusal(flask.request))
            self.after_request(_restrict_to_local)

    handlers: Any = serving
    handlers.WSGIRequestHandler = _handler_with_deadline(serving.WSGIRequestHandler)
    server.flask = _PatchedModule(flask, Flask=GuardedFlask)
    unknown = dict.fromkeys(("version", "runningVersion", "releaseUrl", "desktopAppUrl"), "")
    server._check_new_version = lambda print_msg=True: unknown
    # the models are already converted
    extension_manager.ExtensionManager.BUILTIN_ADAPTER_MODULES = []
    return server


def _handler_with_deadline(base: Any) -> Any:  # noqa: ANN401  (classes of werkzeug's)
    """Return a class of request handlers that close a connection if its request does not arrive."""
    if hasattr(base, "has_deadline"):
        return base

    class Handler(base):  # type: ignore[misc]
        has_deadline = True

        def handle_one_request(self) -> None:
            self.deadline = Timer(MAX_SECONDS, _shut_down, (self.connection,))
            self.deadline.daemon = True
            self.deadline.start()
            try:
                super().handle_one_request()
            finally:
                self.deadline.cancel()

        def run_wsgi(self) -> None:
            self.deadline.cancel()  # the request arrived; its answer may take longer
            super().run_wsgi()

    return Handler


def _shut_down(connection: socket.socket) -> None:
    with suppress(OSError):  # the client closed it
        connection.shutdown(socket.SHUT_RDWR)


class _PatchedModule:
    """Module with some of its names replaced."""

    def __init__(self, module: Any, **names: Any) -> None:  # noqa: ANN401
        self._module = module
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._module, name)


def _refusal(request: Any) -> tuple[str, int] | None:  # noqa: ANN401
    """Return the error for a request of another host, page or path or a change, else ``None``."""
    name = request.host.rpartition(":")[0] or request.host
    if name not in (HOST, "localhost"):
        return "this answers to this machine alone", 403
    origin = request.headers.get("Origin")
    site = request.headers.get("Sec-Fetch-Site", "none")
    if origin not in (None, f"http://{request.host}") or site not in ("same-origin", "none"):
        return "this answers to its own page alone: open the address itself", 403
    if request.method not in ("GET", "HEAD") or not ALLOWED_PATHS.fullmatch(request.path):
        return "this shows what it was started with, and nothing else", 403
    return None


def _restrict_to_local(response: Any) -> Any:  # noqa: ANN401
    """Prevent the page from loading from other hosts: it refers to their fonts and links."""
    response.headers["Content-Security-Policy"] = POLICY
    if response.mimetype == "text/html" and response.status_code == 200:
        response.direct_passthrough = False
        response.set_data(EXTERNAL_RESOURCES.sub("", response.get_data(as_text=True)))
    return response


def build_configuration(models: Sequence[ExplorerModel]) -> Any:  # noqa: ANN401  (a class of Model Explorer)
    """Return Model Explorer's configuration: graphs, node data, and the panes that show them."""
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
        # without its own label, a collection is named by its URL
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
