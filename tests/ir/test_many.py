"""Numbers at many points give what Python gives at each of them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irgraph.ir.points.point_values import (
    PointValues,
    ScalarOnlyError,
    SplitError,
    fsum,
    if_else,
    map_points,
    maximum,
    minimum,
    to_float,
    to_int,
)

WHOLE = st.integers(-(2**25), 2**25)
REAL = st.floats(-1e9, 1e9, allow_nan=False)
OPERATIONS: tuple[Callable[[Any, Any], Any], ...] = (
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    minimum,
    maximum,
    operator.floordiv,
    operator.mod,
    lambda a, b: -(-a // b),
    lambda a, b: if_else(a < b, a, b),
    lambda a, b: fsum(a, b),
    lambda a, b: map_points(math.hypot, a, b),
)


def plain(many: Any) -> list[Any]:
    values: list[Any] = many.values.tolist()
    return values


@settings(max_examples=150, deadline=None)
@given(st.lists(WHOLE | REAL, min_size=3, max_size=3), WHOLE | REAL, st.sampled_from(OPERATIONS))
def test_operations_are_pythons_to_the_last_digit(
    numbers: list[float], other: float, operation: Callable[[Any, Any], Any]
) -> None:
    if len({type(n) for n in numbers}) > 1:
        numbers = [float(n) for n in numbers]
    for ours, theirs in (
        (lambda x: operation(x, other), lambda n: operation(n, other)),
        (lambda x: operation(other, x), lambda n: operation(other, n)),
    ):
        try:
            found = ours(PointValues(np.array(numbers)))
        except ScalarOnlyError:  # a division by zero, or one of fractions: left to Python
            continue
        assert plain(found) == [theirs(n) for n in numbers]


def test_rounding_and_conversion() -> None:
    halves = PointValues(np.array([-1.5, 0.5, 2.5, 3.2]))
    assert plain(math.ceil(halves)) == [-1, 1, 3, 4]
    assert plain(round(halves)) == [-2, 0, 2, 3]
    assert plain(to_int(halves)) == [-1, 0, 2, 3]
    assert plain(to_float(PointValues(np.array([1, 2])))) == [1.0, 2.0]
    assert isinstance(halves, float) and not isinstance(halves, int)
    assert isinstance(to_int(halves), int)
    assert (to_int(2.9), to_float(2), minimum(2, 1), maximum(2, 1), if_else(False, 1, 2)) == (
        2,
        2.0,
        1,
        2,
        2,
    )


def test_points_that_disagree_are_parted() -> None:
    sizes = PointValues(np.array([1, 5, 9]))
    assert bool(sizes > 0) and not sizes > 9
    with pytest.raises(SplitError) as found:
        bool(sizes > 4)
    assert found.value.holds.tolist() == [False, True, True]


@pytest.mark.parametrize(
    "use", [int, float, hash, math.sqrt, range, lambda x: 1 / (x - 1), lambda x: x * 2**61]
)
def test_what_would_be_wrong_at_some_points_is_refused(use: Callable[[Any], object]) -> None:
    with pytest.raises(ScalarOnlyError):
        use(PointValues(np.array([1, 2, 3])))
