"""The recipes of CONTRIBUTING.md: what to write, and what to run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "CONTRIBUTING.md"

PARTS = (
    "irgraph", "costmodels", "passes", "grammars", "examples", "docs", "tests", "pyproject.toml",
    "README.md", "CONTRIBUTING.md", "CHANGELOG.md",
)  # fmt: skip
"""What a copy of the tree holds."""

BLOCK = re.compile(r"^(`{3,})(\w+)\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
PATH = re.compile(r"`([\w/.-]+)`:")
"""The line above a block that says which file it is, or changes."""


@dataclass(frozen=True)
class Block:
    """A fenced block of the page: its kind, its text, and the file that it is about."""

    kind: str
    text: str
    path: str


@dataclass(frozen=True)
class Recipe:
    """One recipe.

    Attributes:
        title: its heading.
        blocks: files and changes.
        commands: what to run, in order.
    """

    title: str
    blocks: tuple[Block, ...]
    commands: tuple[str, ...]

    @property
    def files(self) -> list[str]:
        """The files that it makes or changes."""
        return list(dict.fromkeys(block.path for block in self.blocks))

    @property
    def code(self) -> list[str]:
        """The files of source code among them."""
        source = ("irgraph/", "costmodels/", "passes/", "grammars/")
        return [path for path in self.files if path.startswith(source)]

    def without(self, path: str) -> Recipe:
        """Return the recipe with a file forgotten."""
        return Recipe(self.title, tuple(b for b in self.blocks if b.path != path), self.commands)

    def apply(self, tree: Path) -> None:
        """Write its files and make its changes."""
        for block in self.blocks:
            file = tree / block.path
            if block.kind == "diff":
                file.write_text(changed(file.read_text("utf-8"), block.text), "utf-8")
            else:
                file.write_text(block.text, "utf-8")


def recipes(page: str) -> dict[str, Recipe]:
    """Return the recipes of a page by their headings: sections with files or commands."""
    found = {}
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        title = section.partition("\n")[0]
        blocks, commands, path = [], [], ""
        for match in BLOCK.finditer(section):
            above = section[: match.start()].rstrip().rpartition("\n")[2]
            named = PATH.fullmatch(above)
            path = named[1] if named else path
            if match[2] == "sh":
                commands += match[3].splitlines()
            elif named or match[2] == "diff":
                blocks.append(Block(match[2], match[3], path))
        if commands:
            found[title] = Recipe(title, tuple(blocks), tuple(commands))
    return found


def changed(text: str, diff: str) -> str:
    """Return a text with a change: lines behind ``-`` go, ``+`` come, others say where.

    The parts of lines that are given must stand in the text once; added lines alone go to its end.
    """
    rows = [(row[:1], row[1:]) for row in diff.splitlines()]
    old = "\n".join(row for sign, row in rows if sign != "+")
    new = "\n".join(row for sign, row in rows if sign != "-")
    if not old:
        return f"{text}{new}\n"
    if text.count(old) != 1:
        raise ValueError(f"stands {text.count(old)} times in the file:\n{old}")
    return text.replace(old, new)


def copy(folder: Path) -> Path:
    """Return a copy of the tree, with what is compiled of it: that goes by times, which stay."""
    for part in PARTS:
        source, to = ROOT / part, folder / part
        if source.is_dir():
            shutil.copytree(source, to, ignore=shutil.ignore_patterns(".*"))
        else:
            shutil.copy(source, to)
    return folder


def run(command: str, tree: Path) -> subprocess.CompletedProcess[str]:
    """Run a command line of the page in a copy of the tree."""
    name, *words = shlex.split(command)
    before = {
        "irgraph": ["-m", "irgraph"],
        "pytest": ["-m", "pytest", "-n0", "-p", "no:cacheprovider"],
        "python": [],
    }[name]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "IRGRAPH_DATA"))}
    return subprocess.run(
        [sys.executable, *before, *words],
        cwd=tree,
        env={**env, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
