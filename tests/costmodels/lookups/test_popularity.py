"""How often rows are looked up: sums over groups beside sums over rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.lookups.popularity import UNIFORM, Distribution, Histogram, Zipf, histogram, rows_of

LAWS = st.one_of(
    st.just(UNIFORM),
    st.builds(Zipf, st.floats(0, 2), st.floats(0, 50)),
    st.builds(Histogram, st.just((1.0, 9.0, 90.0)), st.just((5.0, 3.0, 2.0))),
)


@given(LAWS, st.integers(1, 10**6))
def test_chances_of_all_rows_sum_to_one(law: Distribution, rows: int) -> None:
    found = rows_of(law, rows)
    assert found.counts.sum() == pytest.approx(rows)
    assert (found.counts * found.chances).sum() == pytest.approx(1.0)
    assert (found.chances >= 0).all() and (found.chances <= 1 + 1e-9).all()


@given(LAWS, st.integers(1, 10**6), st.integers(0, 10**6))
def test_distinct_rows_are_at_most_rows_and_lookups(
    law: Distribution, rows: int, lookups: int
) -> None:
    assert 0 <= rows_of(law, rows).distinct_count(lookups) <= min(rows, lookups) * (1 + 1e-9)


@pytest.mark.parametrize("law", [Zipf(0.5), Zipf(1.05), Zipf(1.05, 20.0), Zipf(2.0)], ids=str)
def test_groups_of_a_zipf_law_sum_like_its_rows(law: Zipf) -> None:
    weights = (np.arange(1, 1_000_001) + law.shift) ** -law.exponent
    chances = weights / weights.sum()
    exact = -np.expm1(200_000 * np.log1p(-chances)).sum()
    found = rows_of(law, 1_000_000)
    assert len(found.counts) < 1000
    assert found.chances[0] == pytest.approx(chances[0], rel=1e-5)
    assert found.distinct_count(200_000) == pytest.approx(exact, rel=1e-4)


def test_uniform_distinct_rows_are_the_closed_form() -> None:
    expected = 1e6 * (1 - (1 - 1e-6) ** 204_800)
    assert rows_of(UNIFORM, 1_000_000).distinct_count(204_800) == pytest.approx(expected)


def test_several_numbers_of_lookups_are_answered_at_once() -> None:
    found = rows_of(Zipf(1.0), 500)
    many = found.distinct_count(np.array([0.0, 10.0, 1e9]))
    assert many[0] == 0 and many[1] == found.distinct_count(10) and many[2] == pytest.approx(500)


def test_a_histogram_of_counted_rows_groups_equal_counts() -> None:
    found = histogram([5, 0, 0, 3, 3])
    assert (found.rows, found.lookups) == ((2.0, 2.0, 1.0), (0.0, 6.0, 5.0))
    laid = rows_of(found, 5)
    assert laid.counts.tolist() == [1, 2, 2]
    assert laid.chances == pytest.approx([5 / 11, 3 / 11, 0])


def test_a_histogram_keeps_its_shares_on_a_larger_table() -> None:
    laid = rows_of(Histogram((1.0, 9.0), (1.0, 1.0)), 1000)
    assert laid.counts.tolist() == [100, 900]
    assert laid.chances == pytest.approx([0.5 / 100, 0.5 / 900])


def test_a_group_thinner_than_a_row_shares_it() -> None:
    laid = rows_of(Histogram((0.001, 0.999), (0.5, 0.5)), 10)
    assert laid.counts.tolist() == [1, 9]
    assert laid.chances[0] == pytest.approx(0.5 + 0.99 * 0.5 / 9.99)


@pytest.mark.parametrize(
    ("law", "text"),
    [(UNIFORM, "uniform"), (Zipf(1.05), "zipf:1.05"), (Zipf(1.1, 2.7), "zipf:1.1,2.7")],
    ids=str,
)
def test_a_distribution_prints_as_the_option_takes_it(law: Distribution, text: str) -> None:
    assert str(law) == text
