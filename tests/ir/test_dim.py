"""Sizes with expressions."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from irgraph.ir.dim import Dim, evaluate, make, normal, rebind

TERMS = st.lists(
    st.tuples(st.lists(st.sampled_from("BLT"), max_size=2).map(tuple), st.integers(-50, 50)),
    max_size=4,
)
DIMS = {"B": 7, "L": 3, "T": 2}


@given(TERMS)
def test_a_size_is_the_value_of_its_expression(terms: list[tuple[tuple[str, ...], int]]) -> None:
    size = make(terms, DIMS)
    assert size == evaluate(tuple(terms), DIMS)
    assert evaluate(normal(terms), DIMS) == size


def test_expressions_print_in_one_way() -> None:
    terms = [((), 1), (("L", "B"), 26), (("B",), -2), (("B",), 1)]
    assert str(make(terms, DIMS)) == "26*B*L-B+1"


def test_a_constant_expression_is_a_plain_number() -> None:
    assert type(make([((), 5)], DIMS)) is int
    assert type(make([(("B",), 1), (("B",), -1)], DIMS)) is int


def test_rebinding_gives_the_value_under_other_dimensions() -> None:
    size = make([(("B", "L"), 2), ((), 1)], DIMS)
    assert rebind(size, {"B": 10, "L": 3}) == 61
    assert rebind(5, {}) == 5


def test_an_unknown_dimension_is_named() -> None:
    with pytest.raises(KeyError, match="Q"):
        make([(("Q",), 1)], DIMS)


def test_a_copy_keeps_the_expression() -> None:
    size = make([(("B",), 2)], DIMS)
    again = copy.deepcopy(size)
    assert isinstance(again, Dim)
    assert (again, str(again)) == (14, "2*B")
