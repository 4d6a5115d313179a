"""Spaces of passes, and scripts that are built as objects."""

from __future__ import annotations

import pytest

from irgraph.diagnostics import IrgraphError
from irgraph.language import Script, load_pass, load_script, run
from irgraph.language.statements.apply import Apply
from irgraph.manage.space import call_of, space
from tests.language.models import mlp, training


def test_values_that_make_no_difference_are_left_out() -> None:
    found = space("fuse-embedding", training(3))
    # from a least number of 4 on nothing is fused any more
    assert found.values == {"least": (2,)}
    assert [str(instance) for instance in found.instances] == ["fuse-embedding(least = 2)"]


def test_each_instance_brings_its_graph() -> None:
    (instance,) = space("fuse-epilogue", mlp()).instances
    assert [op.name for op in instance.graph.leaves()].count("irgraph.addmm_relu") == 2
    assert run(Script((), (Apply(instance.call),)), mlp()).graph == instance.graph


def test_a_pass_that_does_not_fit_has_no_instances() -> None:
    assert space("drop-dropout", mlp()).instances == ()


def test_values_can_be_given() -> None:
    script = load_script('pass batch(b: int) "Another batch." { resize B = b }')
    found = space(script.passes[0], mlp(), values={"b": [8, 16, 4, -1]})
    assert found.values == {"b": (8, 16)}


def test_integers_without_default_are_tried() -> None:
    script = load_script('pass batch(b: int) "Another batch." { resize B = b }')
    found = space(script.passes[0], mlp())
    assert 2048 in found.values["b"]
    assert 4 not in found.values["b"]  # as it is


def test_an_unknown_pass_is_an_error() -> None:
    with pytest.raises(IrgraphError, match="did you mean 'fuse-embedding'"):
        space("fuse-embeding", mlp())


def test_a_call_built_as_an_object_prints_as_text_reads() -> None:
    script = Script((), (Apply(call_of("fuse-embedding", {"least": 4})),))
    assert str(script) == "apply fuse-embedding(least = 4)\n"
    assert load_script(str(script)) == script


def test_a_pass_tells_its_space() -> None:
    assert space(load_pass("fuse-embedding"), training(3)).values == {"least": (2,)}


def test_what_is_dropped_says_why() -> None:
    script = load_script('pass batch(b: int) "Another batch." { resize B = b }')
    found = space(script.passes[0], mlp(), values={"b": [8, 4, -1]})
    assert [str(instance) for instance in found.instances] == ["batch(b = 8)"]
    (same, nothing), (wrong, why) = found.dropped
    assert (same, nothing) == ("batch(b = 4)", "changes nothing")
    assert wrong == "batch(b = -1)" and "above 0" in why
    least = space("fuse-embedding", training(4), values={"least": [2, 3, 99]})
    assert least.dropped == (
        ("fuse-embedding(least = 3)", "the same as fuse-embedding(least = 2)"),
        ("fuse-embedding(least = 99)", "changes nothing"),
    )
