"""onnx's own node tests: what lowers without ``onnx.*`` ops gives what onnx expects."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("torch")

from irgraph.capture.onnx.bind import UnsupportedError, bind  # noqa: E402
from irgraph.capture.onnx.model import OnnxNode  # noqa: E402
from irgraph.capture.onnx.operators import OPERATORS  # noqa: E402
from tests.capture.onnx.node_tests import Outcome, cases, outcome, table  # noqa: E402

SAMPLE = 31
"""One test of so many runs every time."""

KNOWN = {
    "test_top_k_same_values": "torch leaves open which of equal values comes first",
    "test_gather_negative_indices": "torch's lookups take no negative index",
    "test_gather_elements_negative_indices": "the same",
    "test_scatter_elements_with_negative_indices": "the same",
    "test_attention_4d_fp16": "torch has no flash attention on the CPU",
}
"""Tests whose graph gives something else, and why."""


def shares(found: list[Outcome]) -> tuple[float, float]:
    """Return how much of the default domain lowers, and of all without ``onnx.*`` ops matches."""
    states = Counter(one.state for one in found)
    default = [one for one in found if not one.domain]
    lowered = sum(one.state != "refused" for one in default) / len(default)
    whole = states["matched"] + states["different"] + states["failed"]
    return lowered, states["matched"] / whole


def wrong(found: list[Outcome]) -> list[str]:
    """Return the names of tests whose graph does not give what onnx expects, unless it is known."""
    return [
        one.name
        for one in found
        if one.state in ("different", "failed") and not one.name.startswith(tuple(KNOWN))
    ]


def test_a_sample_of_onnx_s_node_tests_gives_what_onnx_expects() -> None:
    found = [outcome(case) for case in cases()[::SAMPLE]]
    assert not wrong(found)
    assert all(one.reason for one in found if one.state != "matched")
    assert sum(one.state == "matched" for one in found) > len(found) / 2, table(found)


@pytest.mark.slow
def test_onnx_s_node_tests_give_what_onnx_expects() -> None:
    found = [outcome(case) for case in cases()]
    lowered, matched = shares(found)
    assert lowered >= 0.85, table(found)
    assert matched >= 0.98, table(found)
    assert not wrong(found)
    assert all(one.reason for one in found if one.state != "matched")


@pytest.mark.parametrize("op", sorted(OPERATORS))
def test_no_attribute_of_an_operator_is_dropped(op: str) -> None:
    """A converter reads an attribute, or the node is refused by it."""
    schema = onnx.defs.get_schema(op)
    inputs = tuple(f"x{i}" for i in range(schema.min_input))
    known = {name: _one() for name in inputs}
    said = dict.fromkeys(a.name for a in schema.attributes.values() if a.required)
    base = dict.fromkeys(said, 1)
    for name in schema.attributes:
        node = OnnxNode(op, "", "n", inputs, ("y",), {**base, name: 7})
        try:
            call = bind(OPERATORS[op], node, known)
        except UnsupportedError as error:
            assert f"attribute {name}" in str(error) or "lacks" in str(error)
        else:
            assert 7 in (*call.keywords.values(), *call.positional)


def test_an_attribute_that_onnx_does_not_know_is_refused() -> None:
    node = OnnxNode("Relu", "", "n", ("x",), ("y",), {"beta": 2.0})
    with pytest.raises(UnsupportedError, match=r"its attribute beta = 2\.0 is not supported"):
        bind(OPERATORS["Relu"], node, {})


def _one() -> Any:
    import torch

    return torch.ones(1, dtype=torch.int64)
