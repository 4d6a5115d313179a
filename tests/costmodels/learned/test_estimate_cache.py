"""Kernels that were asked for before are not asked for again, and get the same answer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from costmodels.learned.estimate_cache import MAX_KINDS, EstimateCache
from costmodels.learned.infer import Estimates

Column = NDArray[np.float32]
NAMES = ("m", "n", "k", "op")


class Asked:
    """An estimate that differs for every kernel, and how many it was asked for."""

    def __init__(self) -> None:
        self.rows = 0

    def __call__(self, columns: Mapping[str, Column]) -> Estimates:
        self.rows += len(columns["m"])
        sums = sum((7.0**at * columns[n] for at, n in enumerate(NAMES)), np.float32(0))
        return Estimates(*(sums + np.float32(at) for at in range(6)))


def sizes(choose: np.random.Generator, varying: int, rows: int) -> dict[str, Column]:
    """Return columns of sizes of which some vary."""
    few = {
        name: choose.integers(1, 30, rows if at < varying else 1) for at, name in enumerate(NAMES)
    }
    return {name: np.resize(column, rows).astype(np.float32) for name, column in few.items()}


@pytest.mark.parametrize("varying", range(5))
def test_answers_are_those_of_asking_each_time(varying: int) -> None:
    choose, known = np.random.default_rng(varying), EstimateCache()
    for _ in range(200):
        columns = sizes(choose, varying, int(choose.integers(1, 20)))
        found = known.estimates(columns, Asked())
        for one, other in zip(
            (getattr(found, name) for name in Estimates.__struct_fields__),
            (getattr(Asked()(columns), name) for name in Estimates.__struct_fields__),
            strict=True,
        ):
            assert (one == other).all()


def test_parts_of_what_was_asked_are_not_asked_again() -> None:
    known, asked = EstimateCache(), Asked()
    columns = {name: np.full(100, 3, np.float32) for name in NAMES}
    columns["m"] = np.arange(100, dtype=np.float32) % 50
    known.estimates(columns, asked)
    assert asked.rows == 50
    some = {name: column[10:20] for name, column in columns.items()}
    known.estimates(some, asked)
    assert asked.rows == 50
    known.estimates({**some, "m": some["m"] + 35}, asked)
    assert asked.rows == 55


def test_what_was_asked_long_ago_is_forgotten() -> None:
    known, asked = EstimateCache(), Asked()
    columns = {name: np.arange(1, 3, dtype=np.float32) for name in ("m",)}
    for kind in (*range(MAX_KINDS + 1), MAX_KINDS, 0):
        more = {name: np.full(2, kind, np.float32) for name in ("n", "k", "op")}
        known.estimates({**columns, **more}, asked)
    assert asked.rows == 2 * (MAX_KINDS + 2)
