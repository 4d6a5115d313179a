"""Pinned versions: every dependency has one, and the oldest are those that pyproject.toml names."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
REQUIREMENT = re.compile(r"([\w-]+)(?:>=([\d.]+))?")
INSTALLED_BY_OLDEST = ("onnx", "dev")


def pins(name: str) -> dict[str, str]:
    """Return the versions that a file of constraints names, by package."""
    lines = (ROOT / name).read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def floors(*extras: str) -> dict[str, str]:
    """Return the oldest versions that pyproject.toml allows: of the core, and of extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for extra in extras for line in optional[extra])]
    return dict(REQUIREMENT.match(line).groups() for line in lines)


def test_the_oldest_versions_are_those_that_are_tried() -> None:
    assert pins("constraints-oldest.txt") == {
        **floors(*INSTALLED_BY_OLDEST),
        "torch": pins("constraints.txt")["torch"],
    }


def test_every_dependency_is_pinned() -> None:
    assert floors("torch", "onnx", "train", "plot", "dev").keys() <= pins("constraints.txt").keys()
