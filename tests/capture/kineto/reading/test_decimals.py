"""Decimals of times: the fast ways give what exact arithmetic gives."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from irgraph.capture.kineto.reading.decimals import thousandths

NUMBERS = st.from_regex(r"\A(0|[1-9][0-9]{0,14})(\.[0-9]{1,18})?\Z")


@given(st.lists(NUMBERS, min_size=1, max_size=20))
def test_decimals_of_any_length_are_exact(texts: list[str]) -> None:
    expected = [int(Decimal(text) * 1000) for text in texts]
    assert thousandths([text.encode() for text in texts]).tolist() == expected


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["-0.5", "1.25"], [-500, 1250]),
        (['"7.1"', "2"], [7100, 2000]),
        (["1e3", "2.5"], [1_000_000, 2500]),
        (["5.1234567890123456789"], [5123]),
    ],
)
def test_other_spellings_are_read_one_by_one(texts: list[str], expected: list[int]) -> None:
    assert thousandths([text.encode() for text in texts]).tolist() == expected


@given(st.integers(-(2**43) * 1000 + 1, 2**43 * 1000 - 1))
def test_three_decimals_of_floats_are_exact(number: int) -> None:
    text = str(Decimal(number) / 1000)
    assert thousandths([float(text)]).tolist() == [number]


@given(st.from_regex(r"\A-?(0|[1-9][0-9]{0,8})\.[0-9]{4,6}\Z"))
def test_further_decimals_of_floats_are_truncated(text: str) -> None:
    assert thousandths([float(text)]).tolist() == [int(Decimal(text) * 1000)]


@pytest.mark.parametrize("number", [1e30, -1e30, 2.0**63])
def test_floats_out_of_range_are_refused(number: float) -> None:
    with pytest.raises(OverflowError):
        thousandths([0.5, number])


@pytest.mark.parametrize("texts", [["99999999999999999999.5", "1.5"], ["5.25", "9" * 18 + ".1"]])
def test_numbers_out_of_range_are_refused(texts: list[str]) -> None:
    with pytest.raises((OverflowError, ValueError)):
        thousandths([text.encode() for text in texts])


@pytest.mark.parametrize("text", [b"9999999999999999.999", b"-9999999999999999.999"])
def test_a_number_beyond_64_bits_is_out_of_range(text: bytes) -> None:
    with pytest.raises(OverflowError):
        thousandths([b"1.000", text])
