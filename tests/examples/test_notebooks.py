"""The notebooks run, cell by cell, and say what they say in the repository, figures aside."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.tools.notebooks import FOLDER, ROOT, run, texts

pytestmark = pytest.mark.long


def unnumbered(said: list[Any]) -> str:
    """Return a text without figures, which change with the cost models."""
    return re.sub(r"-?[\d.,]+ ?(?:us|ms)?\b|[+-]|\s+", "", json.dumps(said))


def checked(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    count = 0
    for cell, outputs in run(notebook):
        kept = cell["outputs"]
        assert unnumbered(texts(outputs)) == unnumbered(texts(kept)), "".join(cell["source"])
        pictures = [["image/png" in o.get("data", {}) for o in side] for side in (outputs, kept)]
        assert pictures[0] == pictures[1]
        count += bool(outputs)
    assert count >= 3


@pytest.mark.parametrize("name", ["first_prediction", "fuse_embeddings"])
def test_a_notebook_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    checked(FOLDER / f"{name}.ipynb")


def test_the_notebook_of_a_trace_runs(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    checked(FOLDER / "reading_a_trace.ipynb")


def test_no_notebook_is_left_out_and_none_tells_where_it_ran() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == {
        "first_prediction",
        "fuse_embeddings",
        "reading_a_trace",
    }
    for path in FOLDER.glob("*.ipynb"):
        assert str(ROOT) not in path.read_text(encoding="utf-8")
