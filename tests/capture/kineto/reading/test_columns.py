"""Columns that grow piece by piece."""

import numpy as np

from irgraph.capture.kineto.reading.columns import Columns
from irgraph.capture.kineto.reading.trace import Array


def ints(*values: int, kind: str = "i4") -> Array:
    return np.array(values, kind)


def test_columns_are_as_wide_as_their_values_and_absent_where_no_piece_has_them() -> None:
    columns = Columns()
    columns.append({"name": ints(0, 1), "correlation": ints(5, 6)}, 0, 1)
    columns.append({"name": ints(2), "stream": ints(7), "shape": ints(3)}, 1, 1)
    columns.append({"name": ints(0, 0), "correlation": ints(1 << 40, 8, kind="i8")}, 0, 1000)
    assert columns.categories().tolist() == [0, 0, 1, 0, 0]
    assert list(columns.scaled()) == [(slice(0, 3), 1), (slice(3, 5), 1000)]
    assert columns.pop("name").tolist() == [0, 1, 2, 0, 0]
    correlation = columns.pop("correlation")
    assert correlation.tolist() == [5, 6, -1, 1 << 40, 8]
    assert correlation.dtype == np.int64
    assert columns.pop("stream").tolist() == [-1, -1, 7, -1, -1]
    assert columns.pop("shape").tolist() == [0, 0, 3, 0, 0]
    never = columns.pop("sequence")
    assert never.tolist() == [-1] * 5
    assert never.strides == (0,)


def test_numbers_that_fit_in_32_bits_take_no_more() -> None:
    columns = Columns()
    columns.append({"name": ints(0), "external": ints(-5, kind="i4")}, 0, 1)
    assert columns.pop("external").dtype == np.int32


def test_a_piece_without_events_leaves_nothing() -> None:
    columns = Columns()
    columns.append({"name": ints()}, 0, 1)
    assert (columns.rows, columns.pieces) == (0, [])
