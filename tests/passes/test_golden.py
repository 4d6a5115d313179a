"""Each shipped pass on a small model: golden texts of the model before and after."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import passes
from irgraph.language import parse_pipeline, run
from irgraph.text import IrgraphError, parse, print_graph

CALLS = {
    "bucket-allreduce": "bucket-allreduce(limit = 600B)",
    "chunk-loss": "chunk-loss(least = 90)",
    "pad-vocabulary": "pad-vocabulary(least = 90)",
    "resize-batch": "resize-batch(to = 16)",
    "resize-layer": "resize-layer(width = 12)",
    "remove-dead": 'remove-dead(keep = "loss*")',
}
FOLDER = Path(__file__).parents[1] / "golden" / "passes"


@pytest.mark.parametrize("name", passes.names())
def test_a_pass_makes_just_this_of_its_example(
    name: str, golden: Callable[[str, str], None]
) -> None:
    before = FOLDER / f"{name}.before.ir"
    graph = parse(before.read_text(encoding="utf-8"), before.name)
    after = print_graph(run(parse_pipeline(CALLS.get(name, name)), graph).graph)
    golden(f"passes/{name}.after.ir", after)
    assert parse(after) != graph
    assert print_graph(parse(after)) == after


ADDING = {"add-dropout", "add-norm"}
"""Passes that make a larger model each time."""


@pytest.mark.parametrize("name", sorted(set(passes.names()) - ADDING))
def test_a_pass_applied_twice_is_that_pass_once(name: str) -> None:
    pipeline = parse_pipeline(CALLS.get(name, name))
    text = (FOLDER / f"{name}.before.ir").read_text(encoding="utf-8")
    once = run(pipeline, parse(text, name)).graph
    if name == "overlap-allreduce":  # it says why it does not run on its own result
        with pytest.raises(IrgraphError, match="expected no"):
            run(pipeline, once)
    else:
        assert print_graph(run(pipeline, once).graph) == print_graph(once)


def test_products_in_tf32_are_ops_of_their_own(golden: Callable[[str, str], None]) -> None:
    before = FOLDER / "cast-gemms.before.ir"
    graph = parse(before.read_text(encoding="utf-8"), before.name)
    after = print_graph(run(parse_pipeline("cast-gemms(narrow = tf32)"), graph).graph)
    golden("passes/cast-gemms-tf32.after.ir", after)
    assert print_graph(parse(after)) == after
