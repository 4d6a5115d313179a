"""Every recipe of CONTRIBUTING.md works as it stands, in a copy of the tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.capture.kineto.builder import write
from tests.contributing.recipes import PAGE, copy, recipes, run

RECIPES = recipes(PAGE.read_text(encoding="utf-8"))

TESTED = [name for name, recipe in RECIPES.items() if any("pytest" in c for c in recipe.commands)]
"""Recipes that run tests: all but that of a host, which adds no code."""

BEFORE = {"A statement": ("A verb",)}
"""Recipes that go on from others."""

MOST = {"A kernel family": 1, "A learned family": 1, "An op that torch lacks": 2,
        "An op without an entry": 1, "A placement rule": 4, "A verb": 1, "A statement": 2,
        "A pass": 1, "A command": 1, "A device": 1, "A host": 0,
        "A trace format": 1}  # fmt: skip
"""Files of source code that a recipe may take."""

GEGLU = 'irgraph opt model.ir -e "fuse %y = aten.mul(aten.gelu(%a), %b) into %y = irgraph.geglu('
"""Beginning of commands that fuse ops into one of irgraph's."""

SAYS = {
    "irgraph predict model.ir --device v100": "renorm",
    "irgraph measure distance": "3 new measurements",
    "irgraph passes drop-identities": "Products with one and sums with nothing go.",
    "irgraph opt --pass drop-identities": "1 op removed",
    f"{GEGLU}%a": "2 ops became 1\n  legal: ",
    f"{GEGLU}%b": "irgraph.geglu computes something else: %y is off by ",
    "irgraph predict fused.ir": "geglu",
    "irgraph check": "same: 1 tensor",
    "irgraph dims": "B = 2048\n",
    "irgraph predict costmodels/evaluate/data/dlrm_default.ir --device p40": "P40",
    "irgraph predict costmodels/evaluate/data/dlrm_default.ir --host": "my-host",
    "irgraph predict model.ir": "step",
    "irgraph lower mlp.json --step 3": "a list of layers takes no step: it has one step",
}
"""What commands must tell, by their beginning."""

REFUSED = {"irgraph lower mlp.json --step 3": 2, f'{GEGLU}%b, %a)"': 1}
"""Commands that end with another exit code than 0."""


def applied(title: str, folder: Path) -> Path:
    """Return a copy of the tree with a recipe applied."""
    tree = copy(folder)
    for name in (*BEFORE.get(title, ()), title):
        RECIPES[name].apply(tree)
    write(tree, name="kineto.json")
    return tree


def follow(title: str, tree: Path, *programs: str) -> None:
    """Run the commands of a recipe that begin with one of the programs."""
    for command in RECIPES[title].commands:
        if command.split()[0] not in programs:
            continue
        ran = run(command, tree)
        said = ran.stdout + ran.stderr
        wanted = max((key for key in SAYS if command.startswith(key)), key=len, default="")
        assert ran.returncode == REFUSED.get(command, 0), f"{command}\n{said}"
        assert SAYS.get(wanted, "") in said, f"{command}\n{said}"


def test_every_kind_has_a_recipe_of_few_files() -> None:
    assert {title: len(recipe.code) for title, recipe in RECIPES.items()} == MOST


@pytest.mark.parametrize("title", RECIPES)
def test_what_a_recipe_adds_works(title: str, tmp_path: Path) -> None:
    follow(title, applied(title, tmp_path), "irgraph")


@pytest.mark.slow
@pytest.mark.parametrize("title", TESTED)
def test_a_recipe_leaves_nothing_out_that_a_test_asks_for(title: str, tmp_path: Path) -> None:
    tree = applied(title, tmp_path)
    follow(title, tree, "python", "pytest")
    written = [path for path in RECIPES[title].files if path.endswith(".py")]
    for check in ("check", "format --check") if written else ():
        ran = run(f"python -m ruff {check} {' '.join(written)}", tree)
        assert ran.returncode == 0, f"{check}\n{ran.stdout}{ran.stderr}"
