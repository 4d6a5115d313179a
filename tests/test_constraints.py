"""Pinned versions: every dependency has one, and the oldest are those that pyproject.toml names."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
REQUIREMENT = re.compile(r"([\w-]+)(?:[>=]=([\d.]+))?(?:; (.+))?")
INSTALLED_BY_OLDEST = ("onnx", "dev")


Pins = dict[tuple[str, str], str]
"""Versions by package and by the interpreters that they are for."""


def parted(lines: Iterable[str]) -> Pins:
    """Return the versions that requirements name, by package and marker."""
    found = (REQUIREMENT.fullmatch(line).groups() for line in lines)
    return {(name, marker or ""): version for name, version, marker in found}


def pins(name: str) -> Pins:
    """Return the versions that a file of constraints names."""
    lines = (ROOT / name).read_text().splitlines()
    return parted(line for line in lines if not line.startswith("#"))


def floors(*extras: str) -> Pins:
    """Return the oldest versions that pyproject.toml allows: of the core, and of extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    return parted(
        [*project["dependencies"], *(line for extra in extras for line in optional[extra])]
    )


def test_the_oldest_versions_are_those_that_are_tried() -> None:
    assert pins("constraints-oldest.txt") == {
        **floors(*INSTALLED_BY_OLDEST),
        ("torch", ""): pins("constraints.txt")["torch", ""],
    }


def test_every_dependency_is_pinned() -> None:
    extras = ("torch", "onnx", "train", "plot", "chakra", "explorer", "db", "distributed")
    extras += ("studio", "tune", "docs", "dev")
    needed = {name for name, _ in floors(*extras)}
    assert needed <= {name.lower() for name, _ in pins("constraints.txt")}
