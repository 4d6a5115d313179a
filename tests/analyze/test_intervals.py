"""Sets of time stretches."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from irgraph.analyze.intervals import complement, intersection, length, union

pairs = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


def points(spans: list[tuple[int, int]]) -> set[int]:
    return {t for start, end in spans for t in range(start, end)}


def stretches(spans: list[tuple[int, int]]) -> np.ndarray:
    array = np.array(spans, "i8").reshape(-1, 2)
    return union(array[:, 0], array[:, 1])


@given(pairs, pairs)
def test_like_sets_of_points(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    first, second = stretches(a), stretches(b)
    assert length(first) == len(points(a))
    assert length(intersection(first, second)) == len(points(a) & points(b))
    assert length(complement(first, 0, 60)) == 60 - len(points(a))
    assert all(x[1] < y[0] for x, y in pairwise(first))
