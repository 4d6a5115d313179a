"""Choices in parallel: a formula is evaluated for several choices together, at every point.

Numbers that differ between choices are ``PointValues`` with an axis of choices before the axis of
points.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

import numpy as np

from irgraph.ir.points.point_values import Number, PointMask, PointValues

T = TypeVar("T")


def stack_choices(choices: Sequence[int]) -> int:
    """Return the whole numbers of all choices as one number; a single number unchanged."""
    if len(choices) == 1:
        return choices[0]
    return cast("int", PointValues(np.array(choices, np.int64)[:, None]))


def stack_conditions(conditions: Sequence[object]) -> object:
    """Return the conditions of all choices as one condition; a single condition unchanged."""
    if len(conditions) == 1:
        return conditions[0]
    if all(condition is True for condition in conditions):
        return True
    rows = [c.holds if type(c) is PointMask else np.array([bool(c)]) for c in conditions]
    return PointMask(np.stack(np.broadcast_arrays(*rows)))


def min_over_choices(value: T) -> T:
    """Return the minimum over all choices, at every point."""
    many: Number = value
    if type(many) is not PointValues or many.values.ndim == 1:
        return value
    return cast("T", PointValues(many.values.min(0), many.bound))
