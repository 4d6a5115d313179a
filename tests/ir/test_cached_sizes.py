"""Ops keep what they became at other sizes: the same as without, and no more than a few."""

from __future__ import annotations

import pickle
from importlib import import_module, resources
from pathlib import Path

import pytest

from irgraph.api import run_script
from irgraph.ir.graph import Graph
from irgraph.ir.op import OPERANDS_SLOT, RESULTS_SLOT, external_operands, results_by_name
from irgraph.ir.resize import MAX_CACHED_SIZES, RESIZED_SLOT, with_dims
from irgraph.text import parse
from irgraph.verbs.resize import resize
from tests.passes.test_golden import FOLDER

DATA = resources.files("costmodels.evaluate") / "data"


def step() -> Graph:
    return parse((DATA / "dlrm_default.ir").read_text(encoding="utf-8"))


def test_a_step_is_resized_to_what_it_was_at_that_size() -> None:
    graph = step()
    once, other, again = (resize(graph, "B", size).graph for size in (777, 512, 777))
    assert once == again == with_dims(graph, {"B": 777})
    assert other == with_dims(graph, {"B": 512})
    assert all(one is two for one, two in zip(once.ops, again.ops, strict=True))


def test_what_another_pass_left_is_kept_too() -> None:
    graph = step()
    once = resize(graph, "B", 777).graph
    fused = run_script(graph, "apply fuse-embedding\nresize B = 777").graph
    known = set(once.walk())
    assert sum(op in known for op in fused.walk()) > len(fused.ops) / 2
    plain = run_script(graph, "apply fuse-embedding").graph
    assert fused == with_dims(plain, {"B": 777})


def test_sizes_of_other_dimensions_count() -> None:
    text = """model "m" { format = 1  dims = {B = 8, C = 4} }

device @gpu0 "v100"
input %x : f32[B, C] in $x

%y = aten.relu(%x) : f32[B, C] in $y
"""
    graph = parse(text)
    first = resize(resize(graph, "B", 16).graph, "C", 2).graph
    second = resize(resize(graph, "C", 2).graph, "B", 16).graph
    assert first == second == with_dims(graph, {"B": 16, "C": 2})


def test_few_sizes_are_kept_and_none_by_what_an_op_became() -> None:
    graph = step()
    for size in range(100, 100 + 2 * MAX_CACHED_SIZES):
        made = resize(graph, "B", size).graph
        resize(made, "B", 31)
    kept = [op.__dict__.get(RESIZED_SLOT) or {} for op in graph.walk()]
    assert max(map(len, kept)) == MAX_CACHED_SIZES
    assert not any(op.__dict__.get(RESIZED_SLOT) for found in kept for op in found.values())


def test_ops_of_large_steps_keep_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("irgraph.verbs.resize"), "MAX_CACHED_OPS", 10)
    graph = step()
    assert resize(graph, "B", 777).graph == with_dims(graph, {"B": 777})
    assert not any(op.__dict__.get(RESIZED_SLOT) for op in graph.walk())


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ir")), ids=lambda path: path.stem)
def test_names_that_an_op_hands_on_are_those_it_would_find(path: Path) -> None:
    check_names(parse(path.read_text(encoding="utf-8")))


def test_names_of_a_step_are_handed_on() -> None:
    made = check_names(step())
    assert sum(OPERANDS_SLOT in op.__dict__ for op in made.walk()) > 20


def check_names(graph: Graph) -> Graph:
    """Compare what resized ops keep of names with what equal ops find out that keep nothing."""
    made = with_dims(graph, dict.fromkeys(graph.dims, 24))
    fresh = pickle.loads(pickle.dumps(made))
    for op, other in zip(made.walk(), fresh.walk(), strict=True):
        assert RESULTS_SLOT not in other.__dict__
        assert list(results_by_name(op).items()) == list(results_by_name(other).items())
        assert external_operands(op) == external_operands(other)
    return made
