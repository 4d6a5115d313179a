"""The page about the library is made from its docstrings, and what it promises holds."""

from __future__ import annotations

import re
import runpy
from importlib import resources
from pathlib import Path

import pytest

import irgraph

ROOT = Path(__file__).parents[1]
DLRM = resources.files("costmodels.evaluate") / "data" / "dlrm_default.ir"


def test_the_page_is_what_the_docstrings_give() -> None:
    build = runpy.run_path(str(ROOT / "docs" / "build_api.py"))
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert text == build["page"](), "python docs/build_api.py writes it"


def test_every_name_is_on_the_page_once() -> None:
    build = runpy.run_path(str(ROOT / "docs" / "build_api.py"))
    named = [name for names in build["SECTIONS"].values() for name in names]
    assert sorted(named) == sorted(set(irgraph.__all__) - {"__version__"})


@pytest.mark.parametrize("page", ["README.md", "docs/passes.md", "docs/schedule.md"])
def test_programs_on_pages_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    programs = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert programs
    monkeypatch.chdir(tmp_path)
    for name in ("model.ir", "rank.ir"):
        Path(name).write_text(DLRM.read_text(encoding="utf-8"), encoding="utf-8")
    names = {"graph": irgraph.load("model.ir")}
    for program in programs:
        exec(program, names)
