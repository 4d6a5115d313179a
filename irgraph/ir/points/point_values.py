"""Numbers with a value at each of many points, so that a formula is evaluated for all together.

``PointValues`` replace an ``int`` or a ``float`` of a formula, and give at every point the same
result as Python's numbers, to the last digit. If a condition differs between points,
``SplitError`` has the points where it holds, and the formula is evaluated again for each part. An
operation that cannot be vectorised raises ``ScalarOnlyError``, and each point is computed
separately. Nothing is approximated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

EXACT = 2**53
"""Largest magnitude up to which every whole number is exact as float64."""
WIDEST = 2**62
"""Bound of whole numbers that are computed in 64 bits."""

Array = NDArray[Any]

Number: TypeAlias = Any
"""An ``int``, a ``float`` or ``PointValues``."""


T = TypeVar("T")


class ScalarOnlyError(Exception):
    """A formula uses an operation that cannot be evaluated for many points together."""


class SplitError(Exception):
    """A condition holds at some points only.

    Attributes:
        holds: whether it holds at each point, ``bool[points]``.
    """

    def __init__(self, holds: NDArray[np.bool_]) -> None:
        super().__init__("a condition holds at some points only")
        self.holds = holds


class PointMask:
    """A condition at each of many points; as a ``bool`` it must be equal at all points."""

    __slots__ = ("holds",)

    def __init__(self, holds: NDArray[np.bool_]) -> None:
        self.holds = holds

    def __bool__(self) -> bool:
        if self.holds.all():
            return True
        if self.holds.any():
            raise SplitError(self.holds)
        return False

    def __hash__(self) -> int:
        raise ScalarOnlyError("a condition as a key")


class PointValues:
    """A number at each of many points.

    Attributes:
        values: ``int64[points]`` or ``float64[points]``.
        bound: bound of the magnitude of whole numbers; -1 for fractions.
    """

    __slots__ = ("bound", "values")

    def __init__(self, values: Array, bound: int | None = None) -> None:
        """Wrap an array; by default, ``bound`` is computed."""
        self.values = values
        if values.dtype.kind == "f":
            self.bound = -1
            return
        self.bound = int(np.abs(values).max(initial=0)) if bound is None else bound
        if self.bound >= WIDEST:
            raise ScalarOnlyError("numbers beyond 62 bits")

    @property
    def __class__(self) -> type:  # formulas call ``isinstance(size, int)``
        return float if self.bound < 0 else int

    @__class__.setter
    def __class__(self, other: type) -> None:
        raise ScalarOnlyError("a number's class")

    @property
    def is_whole(self) -> bool:
        """Whether the values are integers."""
        return self.bound >= 0

    def __add__(self, other: Number) -> PointValues:
        b, q = _operand(other)
        return PointValues(self.values + b, self.bound + q)

    __radd__ = __add__

    def __sub__(self, other: Number) -> PointValues:
        b, q = _operand(other)
        return PointValues(self.values - b, self.bound + q)

    def __rsub__(self, other: Number) -> PointValues:
        b, q = _operand(other)
        return PointValues(b - self.values, self.bound + q)

    def __mul__(self, other: Number) -> Number:
        b, q = _operand(other)
        return PointValues(self.values * b, self.bound * q)

    __rmul__ = __mul__

    def __truediv__(self, other: Number) -> PointValues:
        return _divide(self, other)

    def __rtruediv__(self, other: Number) -> PointValues:
        return _divide(other, self)

    def __floordiv__(self, other: Number) -> PointValues:
        a, b = _whole_pair(self, other)
        return PointValues(a // b)

    def __rfloordiv__(self, other: Number) -> PointValues:
        a, b = _whole_pair(other, self)
        return PointValues(a // b)

    def __mod__(self, other: Number) -> PointValues:
        a, b = _whole_pair(self, other)
        return PointValues(a % b)

    def __rmod__(self, other: Number) -> PointValues:
        a, b = _whole_pair(other, self)
        return PointValues(a % b)

    def __pow__(self, other: Number) -> PointValues:
        return cast("PointValues", map_points(lambda a, b: a**b, self, other))

    def __rpow__(self, other: Number) -> PointValues:
        return cast("PointValues", map_points(lambda a, b: a**b, other, self))

    def __neg__(self) -> PointValues:
        return PointValues(-self.values, self.bound)

    def __pos__(self) -> PointValues:
        return self

    def __abs__(self) -> PointValues:
        return PointValues(np.abs(self.values), self.bound)

    def __ceil__(self) -> PointValues:
        return _round(np.ceil, self)

    def __floor__(self) -> PointValues:
        return _round(np.floor, self)

    def __trunc__(self) -> PointValues:
        return _round(np.trunc, self)

    def __round__(self, digits: int | None = None) -> PointValues:
        if digits is not None:
            raise ScalarOnlyError("rounding to digits")
        return _round(np.rint, self)

    def __lt__(self, other: Number) -> Number:
        return _compare(np.less, self, other)

    def __le__(self, other: Number) -> Number:
        return _compare(np.less_equal, self, other)

    def __gt__(self, other: Number) -> Number:
        return _compare(np.greater, self, other)

    def __ge__(self, other: Number) -> Number:
        return _compare(np.greater_equal, self, other)

    def __eq__(self, other: object) -> Number:
        return _compare(np.equal, self, other) if _is_number(other) else False

    def __ne__(self, other: object) -> Number:
        return _compare(np.not_equal, self, other) if _is_number(other) else True

    def __bool__(self) -> bool:
        return bool(PointMask(self.values != 0))

    def __hash__(self) -> int:
        raise ScalarOnlyError("a number as a key")

    def __int__(self) -> int:
        raise ScalarOnlyError("int of a number: whole() keeps all points")

    def __float__(self) -> float:
        raise ScalarOnlyError("float of a number: real() keeps all points")

    def __index__(self) -> int:
        raise ScalarOnlyError("a number as an index")

    def __format__(self, spec: str) -> str:
        return "*"

    def __repr__(self) -> str:
        return f"Many({self.values})"

    __str__ = __repr__


def _is_number(value: object) -> bool:
    return type(value) is PointValues or isinstance(value, int | float)


def _operand(value: Number) -> tuple[Any, int]:
    """Return the operand for numpy, and its bound: -1 for fractions."""
    kind = type(value)
    if kind is PointValues:
        return value.values, value.bound
    if kind is float:
        return value, -1
    if isinstance(value, int):
        number = int(value)
        if not -WIDEST < number < WIDEST:
            raise ScalarOnlyError("numbers beyond 62 bits")
        return number, abs(number)
    if isinstance(value, float):
        return float(value), -1
    raise ScalarOnlyError(f"arithmetic with {type(value).__name__}")


def _divide(dividend: Number, divisor: Number) -> PointValues:
    (a, p), (b, q) = _operand(dividend), _operand(divisor)
    if not (b.all() if isinstance(b, np.ndarray) else b):
        raise ScalarOnlyError("division by zero")
    # Python rounds a quotient of integers once; so does numpy if both are exact as floats.
    if p > EXACT or q > EXACT:
        raise ScalarOnlyError("quotients of numbers beyond 53 bits")
    return PointValues(a / b)


def _whole_pair(dividend: Number, divisor: Number) -> tuple[Number, Number]:
    (a, p), (b, q) = _operand(dividend), _operand(divisor)
    if p < 0 or q < 0 or not (b.all() if isinstance(b, np.ndarray) else b):
        raise ScalarOnlyError("floor division of fractions, or by zero")
    return a, b


def _round(function: Callable[[Array], Array], number: PointValues) -> PointValues:
    if number.is_whole:
        return number
    rounded = function(number.values)
    if not (np.abs(rounded) < WIDEST).all():
        raise ScalarOnlyError("no whole number")
    return PointValues(rounded.astype(np.int64))


def _compare(function: Callable[[Any, Any], Array], left: Number, right: Number) -> PointMask:
    (a, p), (b, q) = _operand(left), _operand(right)
    if (p < 0 or q < 0) and max(p, q) > EXACT:
        raise ScalarOnlyError("comparing fractions with numbers beyond 53 bits")
    return PointMask(function(a, b))


def to_int(value: float) -> int:
    """Return ``int(value)``, at every point."""
    many: Number = value
    return _round(np.trunc, many) if type(many) is PointValues else int(value)  # type: ignore[return-value]


def to_float(value: float | str) -> float:
    """Return ``float(value)``, at every point."""
    many: Number = value
    if type(many) is PointValues:
        return PointValues(many.values.astype(np.float64))  # type: ignore[return-value]
    return float(value)


def minimum(first: T, *others: T) -> T:
    """Return ``min`` of the values, at every point, without splitting the points."""
    return cast("T", _extreme(np.minimum, min, (first, *others)))


def maximum(first: T, *others: T) -> T:
    """Return ``max`` of the values, at every point, without splitting the points."""
    return cast("T", _extreme(np.maximum, max, (first, *others)))


def _extreme(function: Number, builtin: Number, values: tuple[Number, ...]) -> Number:
    extreme = values[0]
    for value in values[1:]:
        if type(extreme) is not PointValues and type(value) is not PointValues:
            extreme = builtin(extreme, value)
            continue
        (a, p), (b, q) = _operand(extreme), _operand(value)
        if (p < 0 or q < 0) and max(p, q) > EXACT:
            raise ScalarOnlyError("comparing fractions with numbers beyond 53 bits")
        extreme = PointValues(function(a, b), max(p, q))
    return extreme


def if_else(condition: object, value: T, other: T) -> T:
    """Return ``value if condition else other``, at every point."""
    if type(condition) is not PointMask:
        return value if condition else other
    (a, p), (b, q) = _operand(value), _operand(other)
    if (
        (p or q)
        and "f" in (np.asarray(a).dtype.kind, np.asarray(b).dtype.kind)
        and max(p, q) > EXACT
    ):
        raise ScalarOnlyError("whole numbers beyond 53 bits beside fractions")
    return cast("T", PointValues(np.where(condition.holds, a, b)))


def map_points(function: Callable[..., Any], *values: Number) -> Number:
    """Return a function of Python's numbers at every point, if numpy rounds differently."""
    many = [value for value in values if type(value) is PointValues]
    if not many:
        return function(*values)
    count = len(many[0].values)
    columns = [v.values.tolist() if type(v) is PointValues else [v] * count for v in values]
    value_by_row: dict[tuple[Any, ...], Any] = {}
    results = []
    for row in zip(*columns, strict=True):
        if row not in value_by_row:
            value_by_row[row] = function(*row)
        results.append(value_by_row[row])
    kind = np.int64 if all(type(v) is int for v in value_by_row.values()) else np.float64
    if kind is np.int64 and any(abs(v) >= WIDEST for v in value_by_row.values()):
        raise ScalarOnlyError("numbers beyond 62 bits")
    return PointValues(np.array(results, kind))


def doublings(number: Any) -> Any:  # noqa: ANN401  (whole numbers, at one point or many)
    """Return the rounded-down base-2 logarithm: 0 for 0 and 1, 3 for 8 to 15."""
    if not isinstance(number, PointValues):
        return max(int(number), 1).bit_length() - 1
    values = np.maximum(number.values, 1)
    if values.size and values.max() > EXACT:
        raise ScalarOnlyError("powers of two beyond 53 bits")
    return PointValues(np.frexp(values.astype(np.float64))[1].astype(np.int64) - 1)


def power_of_two(number: Any) -> Any:  # noqa: ANN401  (as above)
    """Return the greatest power of two up to a whole number, 1 for 0."""
    if not isinstance(number, PointValues):
        return 1 << doublings(number)
    return PointValues(np.left_shift(np.int64(1), doublings(number).values))


def point_count(*values: object) -> int:
    """Return the number of points of the first ``PointValues``, 0 if all are plain numbers."""
    return next((len(value.values) for value in values if type(value) is PointValues), 0)


def as_array(value: Number, points: int) -> Array:
    """Return a number as ``float64[points]``."""
    if type(value) is PointValues:
        return value.values.astype(np.float64)
    return np.full(points, float(value))


def fsum(*values: float) -> float:
    """Return ``math.fsum`` of the values, at every point."""
    return cast("float", map_points(lambda *numbers: math.fsum(numbers), *values))
