"""``fuse-embedding``: exactly what is legal is fused, the rest says why not."""

from __future__ import annotations

from collections import Counter

import pytest

from irgraph.ir.graph import Graph
from irgraph.language import Outcome, parse_pipeline, run
from irgraph.ops.verify import verify
from tests.language.models import backward, bag, gradient, model, table, training, update


def fused(graph: Graph, options: str = "") -> Outcome:
    """Return the outcome of the pass, whose graph must be sound."""
    outcome = run(parse_pipeline(f"fuse-embedding{options}"), graph)
    assert verify(outcome.graph) == []
    return outcome


def counts(graph: Graph) -> dict[str, int]:
    """Return how often each op occurs."""
    return dict(Counter(op.name for op in graph.walk()))


def why(outcome: Outcome) -> list[str]:
    """Return the refusals."""
    return [diagnostic.message for diagnostic in outcome.report.refused]


def bags(*parts: str) -> Graph:
    """Return tables of one kind and some ops."""
    return model("".join(table(k) + gradient(k) for k in range(4)) + "".join(parts))


@pytest.mark.parametrize("count", [2, 8, 26])
def test_a_training_step_keeps_one_lookup_and_one_update(count: int) -> None:
    outcome = fused(training(count))
    assert counts(outcome.graph) == {
        "irgraph.batched_embedding": 1,
        "irgraph.batched_embedding_sgd": 1,
    }
    forward, sgd = outcome.graph.ops
    assert [t.name for t in forward.outputs] == [f"y{k}" for k in range(count)]
    assert sgd.written == {f"w{k}" for k in range(count)}
    assert sgd.attributes == {"alpha": -0.1}
    assert sgd.phase == "backward"
    assert why(outcome) == []


def test_each_table_keeps_its_own_operands() -> None:
    sgd = fused(training(3)).graph.ops[1]
    weights, grads, indices, offsets = sgd.operands
    for column, letter in ((weights, "w"), (grads, "g"), (indices, "i"), (offsets, "o")):
        assert [t.name for t in column] == [f"{letter}{k}" for k in (2, 1, 0)]  # type: ignore[union-attr]


def test_a_gradient_that_is_kept_as_it_is_is_fused_too() -> None:
    text = "".join(
        f"autograd.EmbeddingBagBackward0(%g{k}) phase backward {{\n"
        f"  %e{k} = aten._embedding_bag_backward(%g{k}, %i{k}, %o{k}, %a{k}, %b{k}, %m{k},"
        " num_weights = 100, scale_grad_by_freq = false, mode = 0, sparse = true,"
        f" per_sample_weights = none) : f32[100, 8] in $e{k}\n}}\n"
        f"autograd.AccumulateGrad(%e{k}) phase backward\n"
        for k in range(2)
    )
    graph = bags(bag(0), bag(1), text, update(0), update(1))
    assert counts(fused(graph).graph) == {
        "irgraph.batched_embedding": 1,
        "irgraph.batched_embedding_sgd": 1,
    }


def test_rates_that_differ_make_groups_of_their_own() -> None:
    steps = update(0) + update(1) + update(2, "-0.5") + update(3, "-0.5")
    graph = bags(*map(bag, range(4)), *map(backward, range(4)), steps)
    found = counts(fused(graph).graph)
    assert found["irgraph.batched_embedding_sgd"] == 2
    assert found["irgraph.batched_embedding"] == 1


def test_without_plain_sgd_the_backward_pass_alone_is_fused() -> None:
    outcome = fused(bags(*map(bag, range(3)), *map(backward, range(3))))
    found = counts(outcome.graph)
    assert found["irgraph.batched_embedding_backward"] == 1
    assert found["autograd.AccumulateGrad"] == 3
    (op,) = [op for op in outcome.graph.ops if op.name == "irgraph.batched_embedding_backward"]
    assert op.attributes == {"num_weights": (100, 100, 100)}


def test_a_gradient_that_others_read_is_kept() -> None:
    steps = update(0) + update(1) + "%n = aten.norm(%e1) : f32[] in $n\n"
    outcome = fused(bags(*map(bag, range(2)), *map(backward, range(2)), steps))
    found = counts(outcome.graph)
    assert "irgraph.batched_embedding_sgd" not in found
    assert found["irgraph.batched_embedding_backward"] == 1
    assert found["aten.add_"] == 2
    assert "its result %e1, which the new op does not make, is still in use" in why(outcome)[0]


def test_a_gradient_that_accumulates_is_not_taken_for_a_fresh_one() -> None:
    held = "".join(
        f"autograd.AccumulateGrad(%d{k}) phase backward {{\n  aten.add_(%e{k}!, %d{k})\n}}\n"
        for k in range(2)
    )
    states = "".join(f"state %e{k} : f32[100, 8] in $e{k}\n" for k in range(2))
    parts = [backward(k).partition("autograd.Acc")[0] for k in range(2)]
    graph = bags(states, bag(0), bag(1), *parts, held, update(0), update(1))
    outcome = fused(graph)
    assert counts(outcome.graph)["aten.add_"] == 4
    assert counts(outcome.graph)["irgraph.batched_embedding_backward"] == 1
    assert "the new op would not write %e0, as autograd.AccumulateGrad does" in why(outcome)[0]


def test_tables_of_other_widths_and_types_make_groups_of_their_own() -> None:
    graph = model(
        table(0)
        + table(1)
        + table(2, width=16)
        + table(3, width=16)
        + table(4, dtype="f16")
        + table(5, dtype="f16")
        + table(6, width=4)
        + bag(0)
        + bag(2, width=16)
        + bag(4, dtype="f16")
        + bag(1)
        + bag(3, width=16)
        + bag(5, dtype="f16")
        + bag(6, width=4)
    )
    outcome = fused(graph)
    assert [len(op.outputs) for op in outcome.graph.ops] == [2, 2, 2, 4]
    assert len(why(outcome)) == 1
    assert "(%y6) is not fused: its group" in why(outcome)[0]
    assert why(outcome)[0].endswith(
        "is left out: count >= least is false: count is 1 and least is 2"
    )


def test_rows_may_differ() -> None:
    graph = model(table(0, 10) + table(1, 9999) + bag(0) + bag(1))
    assert counts(fused(graph).graph) == {"irgraph.batched_embedding": 1}


def test_a_table_that_two_lookups_share_is_taken_twice() -> None:
    shared = bag(1).replace("%w1", "%w0")
    (op,) = fused(bags(bag(0), shared)).graph.ops
    assert [t.name for t in op.operands[0]] == ["w0", "w0"]  # type: ignore[union-attr]


def test_two_gradients_of_a_shared_table_stay_two_until_they_are_added() -> None:
    total = (
        "%e0 = aten.add(%d0, %d1) : f32[100, 8] in $t phase backward\n"
        "autograd.AccumulateGrad(%e0) phase backward\n"
    )
    parts = [backward(k).partition("autograd.Acc")[0] for k in range(2)]
    outcome = fused(bags(bag(0), bag(1).replace("%w1", "%w0"), *parts, total, update(0)))
    assert counts(outcome.graph) == {
        "irgraph.batched_embedding": 1,
        "irgraph.batched_embedding_backward": 1,
        "aten.add": 1,
        "autograd.AccumulateGrad": 1,
        "aten.add_": 1,
    }


def test_weights_for_each_index_are_handed_on() -> None:
    psw = "".join(f"input %p{k} : f32[20] in $p{k}\n" for k in range(2))
    graph = bags(psw, *(bag(k, f", per_sample_weights = %p{k}") for k in range(2)))
    (op,) = fused(graph).graph.ops
    assert [t.name for t in op.attributes["per_sample_weights"]] == ["p0", "p1"]  # type: ignore[union-attr]


def test_lookups_with_and_without_weights_are_not_mixed() -> None:
    graph = bags(
        "input %p0 : f32[20] in $p0\n", bag(0, ", per_sample_weights = %p0"), bag(1), bag(2)
    )
    assert counts(fused(graph).graph) == {"aten.embedding_bag": 1, "irgraph.batched_embedding": 1}


def test_lookups_that_feed_one_another_are_fused_level_by_level() -> None:
    chain = "%j = aten.take(%y0, %i0) : i64[20] in $j\n"
    outcome = fused(bags(bag(0), bag(1), chain, bag(2, indices="%j"), bag(3, indices="%j")))
    assert [[t.name for t in op.outputs] for op in outcome.graph.ops] == [
        ["y0", "y1"],
        ["j"],
        ["y2", "y3"],
    ]


def test_maxima_need_what_a_batched_lookup_does_not_keep() -> None:
    lookups = [bag(k, ", mode = 2") for k in range(2)]
    outcome = fused(bags(*lookups, *(backward(k, mode=2) for k in range(2))))
    assert counts(outcome.graph)["aten.embedding_bag"] == 2
    assert why(outcome)[0].startswith(
        "aten.embedding_bag (%y0) is not fused: its result %a0, which the new op does not make"
    )


def test_an_option_that_the_batched_op_lacks_is_not_dropped() -> None:
    outcome = fused(bags(bag(0), bag(1), bag(2, ", scale_grad_by_freq = true")))
    assert why(outcome) == [
        "aten.embedding_bag (%y2) is not fused: scale_grad_by_freq = true would be dropped: it is"
        " not the default"
    ]


def test_least_sets_how_many_make_a_series() -> None:
    assert counts(fused(bags(bag(0), bag(1)), "(least = 3)").graph) == {"aten.embedding_bag": 2}
    assert counts(fused(bags(bag(0)), "(least = 1)").graph) == {"irgraph.batched_embedding": 1}


def test_a_lookup_at_device_level_is_fused_alike() -> None:
    parts = [bag(k).replace("aten.embedding_bag", "aten._embedding_bag") for k in range(2)]
    assert counts(fused(bags(*parts)).graph) == {"irgraph.batched_embedding": 1}


def test_the_update_does_not_pass_a_reader_of_the_table() -> None:
    reader = "%n = aten.norm(%w0) : f32[] in $n\n"
    outcome = fused(bags(bag(0), bag(1), backward(0), backward(1), reader, update(0), update(1)))
    names = [op.name for op in outcome.graph.ops]
    assert names.index("aten.norm") < names.index("irgraph.batched_embedding_sgd")
