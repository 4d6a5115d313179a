"""Every verb of the language is tested as a function, too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from irgraph.language import statements

FOLDER = Path(__file__).parents[2] / "irgraph" / "verbs"
NAMES = sorted(
    path.stem for path in FOLDER.glob("*.py") if path.stem in statements.statement_names()
)


@pytest.mark.parametrize("name", NAMES)
def test_a_verb_is_tested_as_a_function(name: str) -> None:
    files = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py")]
    imported = re.compile(rf"^from irgraph\.verbs\S* import .*\b{name}\b", re.MULTILINE)
    assert any(imported.search(text) for text in files), f"no file of tests/verbs imports {name}"
