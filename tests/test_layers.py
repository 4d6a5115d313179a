"""Who may import whom: packages stand in layers, and irgraph imports no cost models."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

BACKEND = "costmodels"
NAMED_IN = {"irgraph/backend.py"}
"""Files that may name the package of cost models: where it is found."""


def imports(path: Path) -> set[str]:
    """Return the modules that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("folder", ["irgraph", "passes", "grammars"])
def test_nothing_below_imports_the_cost_models(folder: str) -> None:
    for path in sorted((ROOT / folder).rglob("*.py")):
        named = [module for module in imports(path) if module.partition(".")[0] == BACKEND]
        assert not named, f"{path.relative_to(ROOT)} imports {named}: ask irgraph.backend"


def test_the_cost_models_are_found_by_name_in_one_place() -> None:
    """A name in a string would hide an import."""
    for path in (ROOT / "irgraph").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        texts = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)}
        if any(isinstance(text, str) and text.split(".")[0] == BACKEND for text in texts):
            assert str(path.relative_to(ROOT)) in NAMED_IN


def test_the_examples_need_nothing_but_the_face() -> None:
    for path in sorted((ROOT / "examples").rglob("*.py")):
        ours = {name for name in imports(path) if name.split(".")[0] in {"irgraph", BACKEND}}
        assert ours <= {"irgraph"}, f"{path.name} imports {ours}: what it needs should be public"
