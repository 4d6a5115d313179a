"""The tables of predicted gains in the documentation are what the examples give today."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import irgraph
from examples import library
from irgraph import Graph

DOCS = Path(__file__).parents[2] / "docs"
ROUNDED = 0.011
"""Milliseconds by which a figure of two decimals may differ on another processor."""


@pytest.fixture(scope="module")
def graphs() -> list[Graph]:
    return [library.capture_preset(preset, 2048) for preset in library.PRESETS.values()]


def table(page: str, head: str) -> list[list[str]]:
    """Return the cells of a table of a page, by how its first line begins."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith(head))
    end = next(at for at in range(start, len(lines)) if not lines[at].startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:end]]


def agree(told: str, found: str) -> bool:
    numbers = [re.fullmatch(r"([+-]?\d+\.\d\d) ms", cell) for cell in (told, found)]
    if None in numbers:
        return told == found
    first, second = (float(number[1]) for number in numbers if number)
    return abs(first - second) <= ROUNDED


@pytest.mark.slow
def test_the_gains_of_the_library_are_what_it_gives_today(graphs: list[Graph]) -> None:
    head, _, *told = table("library.md", "| step time | DLRM_default")
    assert head == ["step time", *library.PRESETS]
    found = list(library.rows(graphs, "v100", library.RANKS))
    assert [row[0] for row in told] == [row[0] for row in found]
    wrong = [(t, f) for t, f in zip(told, found, strict=True) if not all(map(agree, t, f))]
    assert not wrong, "python examples/library.py prints the table"


@pytest.mark.slow
def test_the_gains_on_models_of_several_kinds_are_what_they_are_today() -> None:
    head, _, *told = table("library.md", "| step time | Llama")
    assert head == ["step time", *library.MODELS]
    found = list(library.model_rows("h100", library.RANKS))
    assert [row[0] for row in told] == [row[0] for row in found]
    wrong = [(t, f) for t, f in zip(told, found, strict=True) if not all(map(agree, t, f))]
    assert not wrong, "python examples/library.py --models prints the table"


def test_the_steps_of_other_sizes_are_what_they_are_today(graphs: list[Graph]) -> None:
    head, _, *told = table("passes.md", "| step time | as captured | `resize-batch")
    calls = [call.strip("`") for call in head[2:]]
    assert [row[0] for row in told] == list(library.PRESETS)
    for graph, (_, *cells) in zip(graphs, told, strict=True):
        models = [graph, *(irgraph.rewrite(graph, call).graph for call in calls)]
        found = [
            f"{irgraph.predict(model, device='v100').step_time / 1e3:.2f} ms" for model in models
        ]
        assert all(map(agree, cells, found)), (cells, found)
