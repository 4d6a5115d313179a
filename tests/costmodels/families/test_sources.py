"""Every family says where its times come from, and the documentation says the same."""

from __future__ import annotations

import pkgutil
import re
from importlib import import_module
from pathlib import Path

import pytest

from costmodels import families

NAMES = sorted(module.name for module in pkgutil.iter_modules(families.__path__))
DOCS = Path(__file__).parents[3] / "docs" / "costs.md"


@pytest.mark.parametrize("name", NAMES)
def test_the_documentation_holds_each_familys_source(name: str) -> None:
    source = import_module(f"costmodels.families.{name}").SOURCE
    row = re.search(rf"^\| {name} \|.*$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert row is not None, f"docs/costs.md has no row for {name}"
    assert f"| {source} |" in row[0]


def test_the_documentation_names_no_family_that_is_not_there() -> None:
    text = DOCS.read_text(encoding="utf-8").partition("| family |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"^\| (\w+) \|", text, re.MULTILINE)) == NAMES
