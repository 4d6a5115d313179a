"""Model Explorer itself: its extensions load ours, its server answers to nobody else."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page

import irgraph
from irgraph.exchange.explorer import explorer_graph, overlays, serve
from irgraph.exchange.explorer.model_files import ExplorerModel
from irgraph.exchange.explorer.overlays import Overlay
from tests.browser import Browser
from tests.exchange.test_explorer import DLRM

pytestmark = pytest.mark.long


def test_its_extensions_open_a_model(tmp_path: Path) -> None:
    from model_explorer.extension_manager import ExtensionManager

    manager = ExtensionManager(["irgraph.exchange.explorer"])
    ExtensionManager.BUILTIN_ADAPTER_MODULES = []  # half a gigabyte of other formats
    manager.custom_extension_modules = ["irgraph.exchange.explorer.main"]  # it is a singleton
    manager.load_extensions()
    (ours,) = [e for e in manager.get_extensions_metadata() if e["id"] == "irgraph"]
    assert ours["fileExts"] == ["ir"]
    command = {
        "extensionId": "irgraph",
        "cmdId": "convert",
        "modelPath": DLRM,
        "settings": {},
        "deleteAfterConversion": False,
    }
    (graph,) = manager.run_cmd(command)["graphs"]
    made = explorer_graph(irgraph.load(DLRM))
    assert {**graph, **made} == graph
    wrong = tmp_path / "wrong.ir"
    wrong.write_text("model")
    with pytest.raises(irgraph.IrgraphError):
        manager.run_cmd({**command, "modelPath": str(wrong)})


@contextmanager
def running(models: list[ExplorerModel]) -> Iterator[str]:
    """Start the server beside the test, until the tests end; yield its address."""
    with socket.socket() as free:
        free.bind((serve.HOST, 0))
        port = free.getsockname()[1]
    keep = {"port": port, "browser": False}
    threading.Thread(target=serve.serve, args=(models,), kwargs=keep, daemon=True).start()
    address = f"http://{serve.HOST}:{port}"
    for _ in range(300):
        try:
            urllib.request.urlopen(f"{address}/check_health", timeout=5)
            break
        except urllib.error.URLError:
            time.sleep(0.1)
    yield address


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Show a small model."""
    text = 'model "a/b <i>" { format = 1 }\n\ndevice @gpu0 "v100"\ninput %x : f32[8] in $x\n\n'
    graph = irgraph.parse(text + "%y = aten.relu(%x) : f32[8] in $y\n")
    with running(
        [ExplorerModel(graph.name, graph, [Overlay("time (us)", {"aten.relu %y": 1.5})])]
    ) as found:
        yield found


def ask(url: str, **headers: str) -> tuple[int, str]:
    data = headers.pop("data", "").encode() or None
    request = urllib.request.Request(url, data, {name.title(): v for name, v in headers.items()})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_it_shows_what_it_was_started_with(address: str) -> None:
    graphs = json.loads(ask(f"{address}/api/v1/load_graphs_json?graph_index=0")[1])["graphs"]
    assert [node["id"] for node in graphs[0]["nodes"]] == ["tensor %x", "aten.relu %y"]
    data = json.loads(ask(f"{address}/api/v1/load_node_data?node_data_index=0")[1])["content"]
    assert json.loads(data)["a/b <i>"]["results"] == {"aten.relu %y": {"value": 1.5}}
    code, page = ask(address)
    assert (code, "<app-root" in page or "model-explorer" in page.lower()) == (200, True)
    assert "fonts.gstatic" not in page


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/read_text_file?path=/etc/passwd",
        "/api/v1/send_command?json=%7B%7D",
        "/api/v1/notify_user_provided_model_path?path=/etc",
        "/api//v1/read_text_file?path=/etc/passwd",
        "/apistream/other",
    ],
)
def test_it_reads_no_other_file(address: str, path: str) -> None:
    assert ask(address + path)[0] in (403, 404)


def test_it_takes_no_change_and_answers_to_this_machine_alone(address: str) -> None:
    assert ask(f"{address}/apipost/v1/update_config", data="{}")[0] == 403
    assert ask(f"{address}/", data="{}")[0] == 403
    assert ask(f"{address}/check_health", host="evil.example")[0] == 403
    assert ask(f"{address}/check_health", host="evil.example:80")[0] == 403
    assert ask(f"{address}/check_health", host="localhost:1")[0] == 200
    assert json.loads(ask(f"{address}/api/v1/check_new_version")[1])["version"] == ""


def test_it_answers_to_no_page_of_another_origin(address: str) -> None:
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
        assert ask(f"{address}/check_health", origin=origin)[0] == 403
    assert ask(f"{address}/check_health", origin=address)[0] == 200
    for site in ("cross-site", "same-site"):
        assert ask(f"{address}/check_health", **{"sec-fetch-site": site})[0] == 403


@pytest.mark.parametrize("pause", [9.0, 0.3], ids=["silent", "byte by byte"])
def test_a_request_that_does_not_arrive_is_closed(
    address: str, monkeypatch: pytest.MonkeyPatch, pause: float
) -> None:
    monkeypatch.setattr(serve, "MAX_SECONDS", 1)
    begin = time.monotonic()
    with socket.create_connection((serve.HOST, int(address.rpartition(":")[2]))) as connection:
        connection.settimeout(pause)
        for letter in b"GET /check_health HTTP/1.1 and much more":
            try:
                connection.sendall(bytes([letter]))
                if not connection.recv(1):
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
    assert 0.9 < time.monotonic() - begin < 8
    assert ask(f"{address}/check_health")[0] == 200


def test_a_port_that_is_taken_is_refused(address: str) -> None:
    with pytest.raises(irgraph.IrgraphError, match="is already in use") as caught:
        serve.serve([], port=int(address.rpartition(":")[2]))
    assert caught.value.exit_code == 2


def test_a_browser_shows_two_models_and_their_overlays(browser: Browser) -> None:
    """It loads nothing from elsewhere, and nothing goes wrong, whatever names hold."""
    planted = "<img src=x onerror=alert(1)>"
    graph = irgraph.load(DLRM)
    text = irgraph.print_graph(graph).replace('"bot_mlp.0.weight"', json.dumps(planted))
    prediction = irgraph.predict(irgraph.parse(text), device="v100")
    found = overlays(prediction.priced, prediction.timeline, prediction.path)
    both = [ExplorerModel(f"{planted} {at}", prediction.priced.graph, found) for at in (1, 2)]
    config = serve.build_configuration(both)
    with running(both) as address:
        page = browser.chromium.new_page(viewport={"width": 1400, "height": 900})
        asked, wrong = [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("dialog", lambda dialog: wrong.append(dialog.message))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda m: wrong.append(m.text) if m.type == "error" else None)
        page.goto(f"{address}/?data={config.to_url_param_value()}")
        page.wait_for_selector("text=critical path (us)", timeout=60_000)
        page.wait_for_function("document.querySelectorAll('canvas').length >= 2", timeout=60_000)
        assert page.locator("text=provenance").count() >= 2
        searched(page)
        assert page.locator("img[src=x]").count() == 0
        assert page.pdf()[:5] == b"%PDF-"
        page.close()
    assert not wrong
    assert not [url for url in asked if not url.startswith((address, "data:", "blob:"))]


def searched(page: Page) -> None:
    """Search for a table, select it among what is found, and zoom out."""
    page.fill("input[placeholder^='Search nodes'] >> nth=0", "tables_3_weight")
    page.wait_for_selector("text=/\\d+ results/")
    page.click("text=param %tables_3_weight >> nth=0", modifiers=["Alt"])
    page.wait_for_selector("text=NODE INFO")
    page.fill("input[placeholder^='Search nodes'] >> nth=0", "")
    canvas = page.locator("canvas").first
    drawn, box = canvas.screenshot(), canvas.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * 0.8)
    page.keyboard.down("Control")
    page.mouse.wheel(0, 400)
    page.keyboard.up("Control")
    page.wait_for_timeout(500)
    assert canvas.screenshot() != drawn


def test_without_it_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "model_explorer", None)
    with pytest.raises(irgraph.IrgraphError, match="Model Explorer") as caught:
        serve.serve([])
    assert (caught.value.exit_code, "irgraph[explorer]" in str(caught.value)) == (2, True)
