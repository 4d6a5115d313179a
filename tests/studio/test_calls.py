"""What the page asks, and what it is answered."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import irgraph
from irgraph.studio.app import PreviewRequest
from tests.studio.conftest import SMALL, TOKEN, studio

Post = Callable[..., Any]


def test_an_edit_is_tried_applied_undone_and_redone(post: Post) -> None:
    text = "apply fuse-epilogue"
    tried = post("try", text=text)
    assert tried["legal"] and tried["changed"]
    assert tried["entries"][0]["legal"]
    assert tried["marks"] == {"0": "removed", "1": "removed"}
    applied = post("apply", text=text)["state"]
    assert [line.split(" = ")[1][:18] for line in applied["ops"]["text"]] == [
        "irgraph.addmm_relu",
        "aten.neg(%y) : f32",
    ]
    assert applied["done"][0]["text"] == text
    assert applied["figures"]["step"] == tried["figures"]["step"]
    undone = post("move", by=-1)["state"]
    assert undone["done"] == [] and undone["undone"][0]["text"] == text
    assert post("move", by=1)["state"] == applied


def test_a_refusal_is_an_answer(post: Post) -> None:
    found = post("apply", text="remove aten.relu")
    assert not found["legal"] and not found["wrong"]
    assert found["problems"][0]["notes"]


def test_a_statement_about_ops(post: Post) -> None:
    assert post("select", verb="remove", ops=[1]) == {"text": "remove aten.relu"}
    assert "select ops" in post("select", 422, verb="remove", ops=[7])["problems"][0]["message"]


def test_words_that_may_follow(post: Post) -> None:
    post("apply", text="find mine = aten.relu")
    assert post("complete", text="remove mi") == {"part": 2, "words": [["mine", "name"]]}


def test_only_the_last_of_several_is_worked_on(tmp_path: Path) -> None:
    made = studio(irgraph.parse(SMALL), tmp_path)
    made.preview(PreviewRequest("resize B = 2", 7))
    assert made.preview(PreviewRequest("resize B = 3", 6)) == {"late": True}


def test_garbage_is_collected_again_after_an_edit(tmp_path: Path) -> None:
    made = studio(irgraph.parse(SMALL), tmp_path)
    for text in ("resize B = 2", "remove aten.relu", "("):
        made.preview(PreviewRequest(text))
        made.apply(PreviewRequest(text))
        assert gc.isenabled()


def test_a_defect_is_said(post: Post, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("irgraph.run_script", lambda *_, **__: 1 / 0)
    found = post("try", 500, text="resize B = 2")
    assert "ZeroDivisionError" in found["problems"][0]["message"]


def test_every_op_has_its_line(dlrm: irgraph.Graph, tmp_path: Path) -> None:
    ops = studio(dlrm, tmp_path).start()["state"]["ops"]
    for op, text, depth in zip(dlrm.walk(), ops["text"], ops["depth"], strict=True):
        assert op.name in text
        assert all(f"%{tensor.name}" in text for tensor in op.outputs)
        assert depth == len(dlrm.paths[op]) - 1
    prediction = irgraph.predict(dlrm)
    assert sum(ops["device"]) == pytest.approx(sum(k.time for k in prediction.kernels()), abs=0.1)
    assert sum(ops["path"]) <= prediction.step_time + 0.1


def test_names_are_data(client: TestClient) -> None:
    """The block of data cannot end before its end."""
    text = client.get(f"/{TOKEN}/").text
    (block,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert json.loads(block)["title"].startswith("small")
    assert text.count("<script") == 3
