"""What steps return is compared by its place, with the memory that it shares."""

from __future__ import annotations

import pytest

from irgraph.execute import compare
from irgraph.text import IrgraphError
from tests.language.models import model

HEAD = """
input %x : f32[4] in $x
param %w : f32[4] in $w
%h = aten.neg(%x) : f32[4] in $h
%k = aten.clone(%h) : f32[4] in $k
"""


def returns(names: str, more: str = "") -> str:
    return f"{HEAD}{more}return {names}\n"


def test_returned_tensors_go_by_their_place() -> None:
    same = compare(model(returns("%h")), model(returns("%k")))
    assert same.same
    assert [(one.kind, one.name) for one in same.compared] == [("returned", "h")]
    assert not compare(model(returns("%h, %x")), model(returns("%x, %h"))).same


def test_what_is_not_returned_may_go() -> None:
    before = model(returns("%h", "%q = aten.abs(%x) : f32[4] in $q\n"))
    found = compare(before, model(returns("%h")))
    assert found.same
    assert (found.only_before, found.only_after) == ([], [])


def test_a_returned_tensor_that_is_not_made_counts() -> None:
    unknown = model(HEAD.replace("%k = aten.clone(%h) : f32[4] in $k\n", ""))
    found = compare(model(returns("%k, %h")), unknown)
    assert not found.same
    assert "returned %k: no longer made, but the step returns it" in str(found)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("%h, %k", "%h, %h", "would share its memory with %k"),
        ("%h, %h", "%h, %k", "no longer shares its memory with %h"),
        ("%w, %x", "%w, %x", ""),
    ],
)
def test_memory_must_be_shared_alike(before: str, after: str, told: str) -> None:
    found = compare(model(returns(before)), model(returns(after)))
    assert [one.problem for one in found.different] == ([told] if told else [])


def test_a_copy_of_a_parameter_is_not_the_parameter() -> None:
    copied = "%c = aten.clone(%w) : f32[4] in $c\n"
    found = compare(model(returns("%c", copied)), model(returns("%w", copied)))
    assert [one.problem for one in found.different] == ["would share its memory with %w"]


def test_another_number_of_results_is_no_comparison() -> None:
    with pytest.raises(IrgraphError, match="different numbers of tensors: 1 and 2"):
        compare(model(returns("%h")), model(returns("%h, %k")))
