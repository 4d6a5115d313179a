"""What declarations claim is true of torch: each claim is run whole, and in two parts."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, tensors_in
from irgraph.ops.book import book, meaning_of, shipped
from irgraph.ops.inference import infer
from irgraph.text import parse
from tests.ops.laws import broken_claims, sizes_of

CALLS = Path(__file__).with_name("calls.ir")
"""Calls of captured steps: of each name up to eight, that differ in axes or arguments."""

OWN = Path(__file__).with_name("own")
"""Folder with calls of the ops that torch lacks, at least one of each."""

MIN_TRUE_OF_OWN = 90
"""Claims about those calls that must have been run."""

MIN_TRUE = 1_000
"""Claims that must have been run, so that the law cannot hold of nothing."""


@cache
def calls() -> Graph:
    """Return the calls."""
    return parse(CALLS.read_text(encoding="utf-8"))


def ops() -> Iterator[Op]:
    return calls().leaves()


@cache
def own_calls() -> tuple[Op, ...]:
    """Return the calls of ops that torch lacks."""
    texts = (path.read_text(encoding="utf-8") for path in sorted(OWN.glob("*.ir")))
    return tuple(op for text in texts for op in parse(text).leaves())


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(count)


@pytest.mark.long
def test_what_ranks_compute_in_parts_is_the_whole() -> None:
    assert true_claims(ops()) >= MIN_TRUE


def test_what_ranks_compute_in_parts_of_our_ops_is_the_whole() -> None:
    assert true_claims(own_calls()) >= MIN_TRUE_OF_OWN


def true_claims(calls: Iterable[Op]) -> int:
    """Return the number of true claims about some calls; fail if one is false."""
    counts: Counter[str] = Counter()
    false = []
    for op in calls:
        for outcome, claim, reason in broken_claims(op):
            counts[outcome] += 1
            if outcome == "false":
                false.append(f"{op.name}: {meaning_of(op)}: {claim.letter or 'terms'}: {reason}")
    assert not false, "\n".join(false)
    outcomes = [f"{count} {outcome}" for outcome, count in sorted(counts.items())]
    sys.stdout.write(f"claims: {', '.join(outcomes)}\n")
    return counts["true"]


def test_each_op_that_torch_lacks_has_a_call_and_a_meaning() -> None:
    declared = {op.name for op in own_calls() if meaning_of(op) is not None}
    missing = sorted(shipped_own_ops() - declared)
    assert not missing, f"add calls of {missing} to a file of tests/ops/own"


@pytest.mark.parametrize("op", own_calls(), ids=lambda op: op.base)
def test_results_have_the_types_that_the_declaration_gives(op: Op) -> None:
    inferred = list(tensors_in(infer(op)))
    assert [(t.dtype, t.shape) for t in inferred] == [(t.dtype, t.shape) for t in op.outputs]


def shipped_own_ops() -> set[str]:
    """Return the names of irgraph's own ops."""
    return {name for name, operator in shipped().items() if operator.custom is not None}


def test_a_letter_has_one_size() -> None:
    for op in (*ops(), *own_calls()):
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
