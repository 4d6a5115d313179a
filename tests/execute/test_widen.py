"""Numbers that short types round alike are equal in comparisons in f64, and no others."""

from __future__ import annotations

import pytest

from irgraph.execute import compare
from irgraph.text import parse

STEP = """model "norm" {{ format = 2 }}

device @gpu0 "v100"
input %x : {dtype}[4, 8] in $x

%a = aten.add(%x, other = {number}) : {dtype}[4, 8] in $a
%y = aten.rsqrt(%a) : {dtype}[4, 8] in $y
return %y
"""

ROUNDED = 9.999999747378752e-06
"""The number of f32 next to 1e-05."""


def is_same(first: float, second: float, dtype: str = "f32") -> bool:
    """Return whether steps that add these numbers are called the same."""
    before, after = (parse(STEP.format(dtype=dtype, number=n)) for n in (first, second))
    return compare(before, after).same


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_number_that_torch_rounds_to_f32_is_the_original_one(dtype: str) -> None:
    assert is_same(1e-05, ROUNDED, dtype)
    assert is_same(ROUNDED, 1e-05, dtype)


def test_numbers_that_f32_tells_apart_differ() -> None:
    assert not is_same(1e-05, 1.0000002e-05)
    assert not is_same(ROUNDED, 1.0000002e-05)
    assert not is_same(2.0, 2.0000002)


def test_numbers_of_f64_are_not_rounded() -> None:
    assert not is_same(1e-05, ROUNDED, "f64")
