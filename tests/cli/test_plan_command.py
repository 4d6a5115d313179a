"""``irgraph plan`` of a step without tables: layouts, files that it writes, and its refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from irgraph.text import parse, print_graph
from tests.cli.conftest import Ran
from tests.execute.test_parallel_layers import perceptron

Run = Callable[..., Ran]

OPTIONS = ("--ranks", "2x2", "--device", "h100-80gb-hbm3", "--host", "h100-torch-2.11")

FIGURE = re.compile(r"\d+\.\d+|\b\d+%")

BORDER = re.compile(r"[│┃]\s*")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.ir"
    path.write_text(print_graph(perceptron()), encoding="utf-8")
    return path


def rows(text: str) -> str:
    """Return a table's rows with ``|`` between cells, without frames, spaces and figures."""
    lines = [line for line in text.splitlines() if not set(line[:1]) & set("┏┡└")]
    cells = [[cell.strip() for cell in BORDER.split(line) if cell.strip()] for line in lines]
    return "".join(FIGURE.sub("#", " | ".join(line)) + "\n" for line in cells)


def test_the_best_layouts_are_printed(
    run: Run, model: Path, golden: Callable[[str, str], None]
) -> None:
    ran = run("plan", model, *OPTIONS, "--top", "3")
    assert ran.code == 0
    text, _, _ = ran.err.partition("\nWARNING")
    golden("layouts.txt", f"{rows(ran.out)}{FIGURE.sub('#', text)}\n")


def test_a_plan_is_read_by_shard(run: Run, model: Path, tmp_path: Path) -> None:
    plan, folder = tmp_path / "plan.json", tmp_path / "ranks"
    ran = run("plan", model, *OPTIONS, "--json", "-o", plan, "--models", folder)
    found = json.loads(ran.out)
    assert json.loads(plan.read_text(encoding="utf-8"))["ranks"] == 4
    best, *others = found["layouts"]
    assert all(best["step_us"] <= other["step_us"] for other in others)
    assert found["simulated"] + len(found["slower_by_bound"]) == found["layouts_count"]
    output = tmp_path / "rank1.ir"
    ran = run("opt", "-e", f'shard by "{plan}" for rank 1', model, "-o", output)
    assert ran.code == 0
    written = parse((folder / "rank1.ir").read_text(encoding="utf-8"))
    assert parse(output.read_text(encoding="utf-8")) == written


def test_too_little_memory_names_the_smallest_layout(run: Run, model: Path) -> None:
    ran = run("plan", model, *OPTIONS, "--memory", "8MiB")
    assert (ran.code, ran.out) == (1, "")
    assert re.search(r"layouts do not fit into 0\.01 GiB: the smallest, data \d x tensor", ran.err)
    assert "no layout fits into memory" in ran.err


def test_what_cannot_be_split_is_told(run: Run, model: Path) -> None:
    ran = run("plan", model, "--ranks", "3", "--device", "h100-80gb-hbm3")
    assert "refused: B = 8 is no multiple of 3 ranks (data 3 x tensor 1; " in ran.err
    assert "which 3 ranks cannot share equally" in ran.err
    assert "data 1 x tensor 3" in ran.out


def test_odd_ranks_are_refused(run: Run, model: Path) -> None:
    assert "expected N or MxN, not '2by8'" in run("plan", model, "--ranks", "2by8").err
    assert "at most 1024 ranks" in run("plan", model, "--ranks", "4096").err
    ran = run("plan", model, *OPTIONS, "--html", "page.html")
    assert (ran.code, "a page shows plans of tables" in ran.err) == (2, True)


def test_tables_are_planned_only_if_there_are_any(run: Run, model: Path) -> None:
    ran = run("plan", model, *OPTIONS, "--of", "tables", "--memory", "8GiB")
    assert (ran.code, ran.out) == (2, "")
    assert "the model has no embedding bags" in ran.err


def test_links_without_measurements_are_told(run: Run, model: Path) -> None:
    ran = run("plan", model, "--ranks", "4", "--device", "t4")
    assert (ran.code, ran.out) == (4, "")
    assert "layouts cannot be compared: " in ran.err
    assert "no collectives were measured on T4" in ran.err
    assert run("plan", model, "--ranks", "4", "--device", "t4", "--fabric", "a100").code == 0
