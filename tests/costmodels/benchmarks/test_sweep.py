"""What is measured."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodels.benchmarks.bench import Bench, Case
from costmodels.benchmarks.sweep import DISTRIBUTIONS
from costmodels.evaluate.dlrm_2021 import REFERENCES
from costmodels.families import sweeps
from costmodels.lookups.popularity import rows_of
from costmodels.lookups.rules import parse_distribution

DOCS = Path(__file__).parents[3] / "docs" / "learned.md"


def plan(name: str, *args: Any, **options: Any) -> list[Case]:
    return sweeps()[name].plan(name, *args, **options)


@pytest.mark.parametrize("name", sweeps())
def test_cases_are_distinct_and_inside_their_ranges(name: str) -> None:
    sweep, cases = sweeps()[name], plan(name, 60)
    assert len({case.key for case in cases}) == len(cases) == 60
    for case in cases:
        for size, (least, most) in sweep.ranges.items():
            assert least <= case.sizes[size] <= most


def test_the_documentation_holds_the_sizes_of_every_sweep() -> None:
    rows = []
    for name, sweep in sweeps().items():
        sizes = ", ".join(f"{size} {least}-{most}" for size, (least, most) in sweep.ranges.items())
        first = ", ".join("x".join(map(str, values)) for values in sweep.needed)
        rows.append(f"| {name} | {sizes} | {first} | 2^{math.log2(sweep.max_product):g} |")
    text = DOCS.read_text(encoding="utf-8").partition("| sweep | sizes | first | product |")[2]
    told = text.split("\n\n")[0].splitlines()[2:]
    assert told == rows, f"docs/learned.md lacks {set(rows) - set(told)}, or has another order"


def test_the_interactions_of_both_dlrm_come_first() -> None:
    """Products of 27 vectors of 128 and of 9 of 64 with each other, and the half that is kept."""
    needed = sweeps()["bmm"].needed
    for model in REFERENCES.values():
        vectors = len(model.rows) + 1
        assert (2048, vectors, vectors, model.width) in needed
        assert (2048, vectors) in sweeps()["index"].needed
    linear = sweeps()["linear"].needed
    assert (1, 2048, model.bottom[1], model.bottom[0]) in linear
    assert (1, 2048, model.top[-1], 1024) in linear


def test_equal_seeds_give_equal_cases() -> None:
    assert plan("linear", 30, seed=1) == plan("linear", 30, seed=1)
    assert plan("linear", 30, seed=1) != plan("linear", 30, seed=2)


def test_what_real_models_need_comes_first() -> None:
    linear = {tuple(case.sizes.values()) for case in plan("linear", 20)}
    assert {(1, 2048, 1, 1024), (1, 2048, 512, 13)} <= linear
    assert any(case.sizes["n"] == 27 == case.sizes["m"] for case in plan("bmm", 20))
    embedding = plan("embedding", 40)
    assert {case.indices for case in embedding} == set(DISTRIBUTIONS)
    assert min(case.sizes["rows"] for case in embedding) == 3


def test_every_data_type_gets_the_needed_sizes() -> None:
    cases = plan("linear", 40, dtypes=("f32", "bf16"))
    assert {c.dtype for c in cases if c.sizes["k"] == 13 and c.sizes["m"] == 2048} == {
        "f32",
        "bf16",
    }


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_rows_are_drawn_as_their_distribution_says(kind: str) -> None:
    import torch

    case = Case("embedding", "embedding", "f32", {}, kind)
    drawn = Bench(torch, "cpu", case).rows(10_000, 50_000).numpy()
    assert drawn.min() >= 0 and drawn.max() < 10_000
    expected = rows_of(parse_distribution(kind), 10_000)
    assert len(np.unique(drawn)) == pytest.approx(float(expected.distinct_count(50_000)), rel=0.02)
    commonest = np.bincount(drawn).max() / 50_000
    assert commonest == pytest.approx(expected.chances.max(), rel=0.15, abs=3e-4)


def test_popular_rows_do_not_lie_side_by_side() -> None:
    import torch

    case = Case("embedding", "embedding", "f32", {}, "zipf:1.3")
    drawn = Bench(torch, "cpu", case).rows(10_000, 50_000).numpy()
    popular = np.argsort(np.bincount(drawn, minlength=10_000))[-20:]
    assert np.abs(np.diff(np.sort(popular))).min() > 1
