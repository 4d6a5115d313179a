"""Strides of views agree with torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from irgraph.capture.common.identity import Handle
from irgraph.capture.common.view_strides import view_strides
from irgraph.ir.tensor import canonical_strides

View = tuple[str, tuple[Any, ...], Callable[[Any], Any]]

VIEWS: list[View] = [
    ("aten.transpose", (0, 2), lambda x: x.transpose(0, 2)),
    ("aten.transpose", (-1, 1), lambda x: x.transpose(-1, 1)),
    ("aten.permute", ((2, 0, 1),), lambda x: x.permute(2, 0, 1)),
    ("aten.select", (1, 0), lambda x: x.select(1, 0)),
    ("aten.select", (-1, 0), lambda x: x.select(-1, 0)),
    ("aten.slice", (1, 0, 100, 2), lambda x: x[:, 0:100:2]),
    ("aten.slice", (), lambda x: x[:]),
    ("aten.unsqueeze", (1,), lambda x: x.unsqueeze(1)),
    ("aten.unsqueeze", (-1,), lambda x: x.unsqueeze(-1)),
    ("aten.squeeze", (), lambda x: x.squeeze()),
    ("aten.squeeze", (0,), lambda x: x.squeeze(0)),
    ("aten.expand", ((5, -1, -1, -1),), lambda x: x.expand(5, -1, -1, -1)),
    ("aten.detach", (), lambda x: x.detach()),
]


@given(st.lists(st.integers(1, 4), min_size=3, max_size=3), st.booleans())
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: f"{view[0]}{view[1]}")
def test_rules_agree_with_torch(view: View, shape: list[int], turned: bool) -> None:
    name, arguments, make = view
    x = torch.empty(shape)
    x = x.transpose(0, 1) if turned else x
    handle = Handle(
        "f32", tuple(x.shape), canonical_strides(tuple(x.shape), x.stride()), 1, 0, "gpu0"
    )
    true = make(x)
    (found,) = view_strides(name, [handle, *arguments], [tuple(true.shape)])
    sizes = tuple(true.shape)
    # a stride along one element means nothing
    assert canonical_strides(sizes, found) == canonical_strides(sizes, true.stride()) or [
        a for a, size in zip(found or (), sizes, strict=True) if size > 1
    ] == [b for b, size in zip(true.stride(), sizes, strict=True) if size > 1]


def test_t_turns_strides_round() -> None:
    handle = Handle("f32", (2, 3), None, 1, 0, "gpu0")
    assert view_strides("aten.t", [handle], [(3, 2)]) == [(1, 3)]


def test_other_ops_have_no_rule() -> None:
    handle = Handle("f32", (2, 3), None, 1, 0, "gpu0")
    assert view_strides("aten.relu", [handle], [(2, 3)]) == [None]


def test_a_reshape_of_an_operand_with_gaps_has_no_strides() -> None:
    handle = Handle("f32", (2, 3), (1, 2), 1, 0, "gpu0")
    assert view_strides("aten.view", [handle, (6,)], [(6,)]) == [None]
    assert view_strides("aten.view", [handle, (2, 3, 1)], [(2, 3, 1)]) == [(1, 2, 2)]


def test_pieces_have_the_strides_of_their_operand() -> None:
    handle = Handle("f32", (2, 6), (1, 2), 1, 0, "gpu0")
    assert view_strides("aten.split", [handle, 3, 1], [(2, 3), (2, 3)]) == [(1, 2), (1, 2)]
    assert view_strides("aten.unbind", [handle, 0], [(6,), (6,)]) == [(2,), (2,)]
