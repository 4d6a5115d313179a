"""Who may import whom: packages stand in layers, and irgraph imports no cost models."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache
from graphlib import TopologicalSorter
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


HOUSE = ("irgraph", "costmodels", "passes", "grammars")
"""The packages that are shipped."""

LAYERS = 12
"""Layers on which rooms may stand: the packages and single files of irgraph, and other packages."""

MANY = 20
"""Files that a folder may hold, unless each of them is one of a kind."""

OF_A_KIND = {
    "costmodels/devices", "costmodels/families", "costmodels/commands", "irgraph/cli/commands",
    "irgraph/language/statements", "irgraph/verbs", "irgraph/ops/kinds", "passes",
    "costmodels/weights/corrections/h100-80gb-hbm3",
}  # fmt: skip
"""Folders with a file for each thing of a kind, in which no file knows of another."""


@cache
def house() -> Mapping[str, set[str]]:
    """Return what each file imports of the others, wherever in it; by the modules' names."""
    files = [path for top in HOUSE for path in (ROOT / top).rglob("*.py")]
    modules = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in files}
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    found = {}
    for name, path in modules.items():
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        whole = {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
        froms = [n for n in nodes if isinstance(n, ast.ImportFrom) and n.module]
        parts = {f"{n.module}.{a.name}" for n in froms for a in n.names}
        named = whole | {part if part in modules else part.rpartition(".")[0] for part in parts}
        found[name] = (named & modules.keys()) - {name}
    return found


def room(module: str) -> str:
    """Return the room of a module: its package, or what it is of irgraph."""
    parts = module.split(".")
    return ".".join(parts[: 2 if parts[0] == "irgraph" else 1])


def test_no_files_import_each_other_in_a_circle() -> None:
    TopologicalSorter(house()).prepare()


def test_rooms_stand_above_what_they_import_on_few_layers() -> None:
    rooms: dict[str, set[str]] = {}
    for module, imported in house().items():
        rooms.setdefault(room(module), set()).update(map(room, imported))
    rooms = {name: others - {name} for name, others in rooms.items()}
    layer: dict[str, int] = {}
    for name in TopologicalSorter(rooms).static_order():
        layer[name] = 1 + max((layer[other] for other in rooms[name]), default=0)
    assert max(layer.values()) <= LAYERS, layer
    del layer["irgraph.__main__"]
    assert layer == documented()


def documented() -> dict[str, int]:
    """Return the layer of each room as the design's table has it."""
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    found, layer = {}, 0
    for number, name in re.findall(r"^\| (\d*) ?\| `([\w.]+)` \|", page, re.MULTILINE):
        layer = int(number or layer)
        found[name] = layer
    return found


def test_no_folder_holds_too_many_files() -> None:
    folders = [path for top in HOUSE for path in [ROOT / top, *(ROOT / top).rglob("*")]]
    for folder in (path for path in folders if path.is_dir() and path.name != "__pycache__"):
        files = [path for path in folder.iterdir() if path.is_file()]
        name = str(folder.relative_to(ROOT))
        assert len(files) <= MANY or name in OF_A_KIND, f"{name} holds {len(files)} files"
