"""Ops retain their identities through edits, and each op of a graph has its own."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from irgraph.ir.edit import Edit
from irgraph.ir.graph import Graph
from irgraph.ir.op import duplicate
from irgraph.language import load_script, run
from irgraph.text import IrgraphError
from tests.language.fuzz import graph as random_graph
from tests.language.fuzz import statement
from tests.language.models import mlp

SCRIPTS = 400
REMOVING = {"fuse", "replace", "remove"}
"""Verbs after which an op may be gone."""


def shared_identities(graph: Graph) -> list[str]:
    """Return the names of leaves that share an identity."""
    counts = Counter(leaf.identity for leaf in graph.leaves())
    return [leaf.name for leaf in graph.leaves() if counts[leaf.identity] > 1]


def test_an_edit_says_what_became_of_each_op() -> None:
    graph = mlp()
    linear, relu, second, in_place, total = graph.ops
    edit = Edit(graph)
    edit.remove(relu)
    edit.rename(relu.outputs[0], linear.outputs[0])
    result = edit.commit()
    assert result.became(relu) == ()
    assert result.became(linear) == (result.ops[0],)
    assert result.became(second) == (result.ops[1],)
    assert result.became(second)[0] is not second
    assert result.became(in_place) == (result.ops[2],)
    assert result.became(total) == (result.ops[3],)


def test_a_duplicate_is_another_op() -> None:
    linear = mlp().ops[0]
    copied = duplicate(linear)
    before, after = ([op.identity for op in x.walk()] for x in (linear, copied))
    assert len(after) == len(before)
    assert set(after).isdisjoint(before)


@pytest.mark.parametrize(
    "statements",
    [
        "cast p to bf16 cast p to f16",
        "cast p to bf16 cast p to f32 cast p to tf32",
        "resize B = 8 cast p to bf16",
        "cast p to bf16 resize B = 8 reorder p latest",
        "reorder p earliest reorder p latest on stream side",
        "remove %y = aten.relu(%x) using %x for %y cast p to bf16",
    ],
)
def test_a_name_follows_its_ops(statements: str) -> None:
    outcome = run(load_script(f"find p = many aten.addmm {statements} expect 2 p"), mlp())
    assert outcome.report.refused == ()
    assert outcome.report.entries[-1].matched == 2


def test_a_name_that_lost_an_op_names_the_statement() -> None:
    with pytest.raises(IrgraphError) as caught:
        run(load_script("find p = aten.sum cast p to bf16\nremove aten.sum\nexpect 1 p"), mlp())
    assert "'p' names aten.sum (%s), which a statement removed" in str(caught.value)
    assert [note.place.line for note in caught.value.diagnostics[0].notes if note.place] == [2]


@pytest.mark.long
def test_names_follow_random_statements() -> None:
    """A name refers to the ops with the identities of those that it named, or gets a reason."""
    outcomes = Counter(_follow(seed) for seed in range(SCRIPTS))
    assert outcomes["followed"] > SCRIPTS / 4
    assert outcomes["removed"] > SCRIPTS / 100


def _follow(seed: int) -> str:
    """Run a statement after ops were named; return what became of the name."""
    rng, graph = random.Random(seed), random_graph(seed)
    name = rng.choice(["neg", "abs", "relu", "clone", "add", "view", "neg_"])
    change = statement(rng)
    try:
        changed = run(load_script(f"find p = many aten.{name}\n{change}"), graph).graph
    except IrgraphError:
        return "refused"
    assert shared_identities(changed) == [], change
    named = [op for op in graph.walk() if op.name == f"aten.{name}"]
    if not named:
        return "none"
    survivors = [op for old in named for op in changed.became(old)]
    script = f"find p = many aten.{name}\n{change}\nexpect {len(survivors)} p"
    try:
        entry = run(load_script(script), graph).report.entries[-1]
    except IrgraphError as error:
        assert "which a statement removed" in str(error), script
        assert REMOVING & set(change.split()), script
        return "removed"
    assert entry.matched == len(survivors) >= len(named), script
    return "followed"
