"""Who is answered: the page with the token, on this machine, and nobody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from irgraph.studio.guard import MAX_BYTES
from tests.studio.conftest import HOST, OWN, PORT, TOKEN

PAGES = ("", "studio.js", "editor.js", "studio.css")
CALLS = ("try", "apply", "move", "select", "complete", "save")


@pytest.mark.parametrize("path", PAGES)
def test_the_page_is_answered(client: TestClient, path: str) -> None:
    found = client.get(f"/{TOKEN}/{path}")
    assert found.status_code == 200
    assert found.headers["content-security-policy"].startswith("default-src 'none'; script-src 's")
    assert found.headers["cache-control"] == "no-store"
    assert found.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/wrong/",
        f"/{TOKEN}x/",
        f"/{TOKEN[:-1]}/",
        f"/{TOKEN}",
        f"//{TOKEN}/",
        "/%00/",
        f"/x/{TOKEN}/",
        "/studio.js",
        "/\u00e9/",
    ],
)
def test_another_token_is_refused(client: TestClient, path: str) -> None:
    found = client.get(path)
    assert found.status_code == 403
    assert "small" not in found.text


@pytest.mark.parametrize("call", CALLS)
def test_no_call_goes_without_the_token(client: TestClient, call: str) -> None:
    assert client.post(f"/wrong/{call}", json={}, headers=OWN).status_code == 403
    assert client.post(f"/{call}", json={}, headers=OWN).status_code == 403


@pytest.mark.parametrize("host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1:1", "", "::1"])
def test_another_host_is_refused(client: TestClient, host: str) -> None:
    """A name of another host that leads here: DNS rebinding."""
    found = client.get(f"/{TOKEN}/", headers={"host": host})
    assert found.status_code == 403
    assert "this machine" in found.text


def test_its_other_name_is_its_own(client: TestClient) -> None:
    assert client.get(f"/{TOKEN}/", headers={"host": f"localhost:{PORT}"}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "null"},
        {"origin": "http://evil.example"},
        {"origin": f"https://{HOST}"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": f"http://localhost:{PORT}"},
        {**OWN, "sec-fetch-site": "cross-site"},
        {**OWN, "sec-fetch-site": "same-site"},
    ],
    ids=str,
)
@pytest.mark.parametrize("call", CALLS)
def test_another_origin_is_refused(client: TestClient, call: str, headers: dict[str, str]) -> None:
    found = client.post(f"/{TOKEN}/{call}", json={"text": "resize B = 2"}, headers=headers)
    assert found.status_code == 403
    assert "own page" in found.text


def test_another_page_cannot_load_it(client: TestClient) -> None:
    found = client.get(f"/{TOKEN}/studio.js", headers={"sec-fetch-site": "cross-site"})
    assert found.status_code == 403


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_forms_are_refused(client: TestClient, kind: str) -> None:
    headers = {**OWN, "content-type": kind}
    found = client.post(f"/{TOKEN}/try", content=b'{"text": ""}', headers=headers)
    assert found.status_code == 415


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"text": 3}', b"\xff", b"[" * 100_000])
def test_what_is_no_request_is_refused(client: TestClient, body: bytes) -> None:
    headers = {**OWN, "content-type": "application/json"}
    found = client.post(f"/{TOKEN}/try", content=body, headers=headers)
    assert found.status_code == 400
    assert found.json()["problems"][0]["message"].startswith("not what this takes")


def test_what_is_too_large_is_refused(client: TestClient, post: Callable[..., Any]) -> None:
    post("try", text="#" * (MAX_BYTES - 100))
    headers = {**OWN, "content-type": "application/json"}
    body = b'{"text": "' + b"#" * MAX_BYTES + b'"}'
    assert client.post(f"/{TOKEN}/try", content=body, headers=headers).status_code == 413
    parts = iter([body[: MAX_BYTES // 2], body[MAX_BYTES // 2 :]])  # of a length that is not said
    assert client.post(f"/{TOKEN}/try", content=parts, headers=headers).status_code == 413
    said = {**headers, "content-length": "9" * 30}
    assert client.post(f"/{TOKEN}/try", content=b"", headers=said).status_code == 413


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
def test_other_methods_are_refused(client: TestClient, method: str) -> None:
    assert client.request(method, f"/{TOKEN}/try", headers=OWN).status_code in (403, 405)


def test_other_paths_are_not_there(client: TestClient) -> None:
    for path in ("studio.html", "assets/studio.html", "../guard.py", "js/main.js", "//etc/passwd"):
        assert client.get(f"/{TOKEN}/{path}").status_code in (403, 404)
