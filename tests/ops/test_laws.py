"""What declarations claim is true of torch: each claim is run whole, and in two parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ops.book import book, meaning_of
from irgraph.text import parse
from tests.ops.laws import broken_claims, sizes_of

CALLS = Path(__file__).with_name("calls.ir")
"""Calls of captured steps: of each name up to eight, that differ in axes or arguments."""

MIN_TRUE = 1_000
"""Claims that must have been run, so that the law cannot hold of nothing."""


@cache
def calls() -> Graph:
    """Return the calls."""
    return parse(CALLS.read_text(encoding="utf-8"))


def ops() -> Iterator[Op]:
    return calls().leaves()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(count)


@pytest.mark.long
def test_what_ranks_compute_in_parts_is_the_whole() -> None:
    counts: Counter[str] = Counter()
    false = []
    for op in ops():
        for outcome, claim, reason in broken_claims(op):
            counts[outcome] += 1
            if outcome == "false":
                false.append((op.name, str(meaning_of(op)), claim.letter, reason))
    assert false == []
    assert counts["true"] >= MIN_TRUE, counts


def test_a_letter_has_one_size() -> None:
    for op in ops():
        meaning = meaning_of(op)
        if meaning is None:
            continue
        sizes = sizes_of(op, meaning)
        axes = (*meaning.operands, *(result.axes for result in meaning.results))
        for tensor, names in zip((*op.inputs, *op.outputs), axes, strict=False):
            assert len(names) == tensor.rank, op.name
            for size, name in zip(tensor.shape, names, strict=True):
                assert sizes.get(str(name), size) == size, (op.name, str(meaning))


def test_most_calls_are_declared() -> None:
    names = {op.name for op in ops()}
    declared = {op.name for op in ops() if meaning_of(op) is not None}
    assert len(declared) / len(names) > 0.9, sorted(names - declared)
    assert len(book()) >= 250
