"""Layouts of a step over ranks, against all of them enumerated, and executed."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from msgspec.structs import replace

from irgraph.execute import compare_ranks
from irgraph.ir.graph import Graph
from irgraph.ir.resize import with_dims
from irgraph.planning.layouts.bounds import MemoryBound, activation_bytes
from irgraph.planning.layouts.layer_pairs import LayerPair, layer_pairs, pattern_of
from irgraph.planning.layouts.layout import SHARDINGS, StepLayout, shardings_of
from irgraph.planning.layouts.overlap import STREAM, with_overlap
from irgraph.planning.layouts.recomputation import with_recomputation
from irgraph.planning.layouts.result import LayoutSearch, reason_of_order
from irgraph.planning.layouts.search import search_layouts
from irgraph.predict.options import PredictOptions
from irgraph.predict.prediction import predict
from irgraph.schedule.memory.caching_allocator import reserved_memory
from irgraph.schedule.memory.peak import workspace
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.sharding.shard import shard
from tests.execute.test_parallel_layers import COLUMN, PAIRS, ROW, language, perceptron

H100 = PredictOptions(device="h100-80gb-hbm3", ranks="2x2")
GIB = 2.0**30


def search(graph: Graph, **options: Any) -> LayoutSearch:
    return search_layouts(graph, 4, H100, options.pop("memory", 80 * GIB), **options)


def subsets(pairs: tuple[LayerPair, ...]) -> list[dict[str, Any]]:
    """Return the layers of all sets of pairs."""
    chosen = [c for size in range(1, len(pairs) + 1) for c in combinations(pairs, size)]
    return [{k: v for pair in group for k, v in pair.layers.items()} for group in chosen]


def enumerated(graph: Graph) -> dict[tuple[str, str], float]:
    """Return the step times of all layouts that are not refused, by text and layers."""
    times = {}
    for tensor in (1, 2, 4):
        for layers in [{}] if tensor == 1 else subsets(layer_pairs(graph).pairs):
            for kind in shardings_of(4 // tensor):
                layout = StepLayout(4 // tensor, tensor, kind, layers)
                try:
                    step = shard(graph, layout.plan(), 0).graph
                except RefusedError:
                    continue
                times[str(layout), str(layers)] = predict(step, H100).step_time
    return times


@pytest.mark.long
@pytest.mark.parametrize("graph", [language, perceptron], ids=lambda make: make.__name__)
@pytest.mark.parametrize("batch", [8, 65536])
def test_the_best_of_all_layouts_are_found(graph: Any, batch: int) -> None:
    step = with_dims(graph(), {"B": batch})
    times = enumerated(step)
    result = search(step, max_results=3)
    simulated = {(str(r.layout), str(r.layout.layers)): r.step_time for r in result.results}
    assert simulated.items() <= {k: pytest.approx(v) for k, v in times.items()}.items()
    best = sorted(times.values())[:3]
    assert [r.step_time for r in result.results[:3]] == pytest.approx(best)
    for slow in result.slow:
        assert best[-1] < slow.bound <= times[str(slow.layout), str(slow.layout.layers)]


@pytest.mark.long
def test_bounds_leave_layouts_out() -> None:
    """A step of many samples that ranks of layers repeat is slower by a bound alone."""
    result = search(with_dims(language(), {"B": 65536}), max_results=1)
    assert result.slow
    assert result.simulated + len(result.slow) == result.count


@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_memory_bounds_are_below_the_memory_of_ranks(sharding: Any, tensor: int) -> None:
    if sharding not in shardings_of(4 // tensor):
        return
    layout = StepLayout(4 // tensor, tensor, sharding, PAIRS if tensor > 1 else {})
    whole = replace(layout, sharding="replicated")
    for batch in (8, 4096):
        step = with_dims(language(), {"B": batch})
        activations = activation_bytes(shard(step, whole.plan(), 0).graph)
        bound = MemoryBound(step)
        reserved = reserved_memory(shard(step, layout.plan(), 0).graph)
        assert 0.0 < bound.bytes_of(layout) <= bound.bytes_with(layout, activations) < reserved


def test_pairs_are_those_of_megatron() -> None:
    pairs = layer_pairs(language())
    assert [dict(pair.layers) for pair in pairs.pairs] == [
        {"*.query": COLUMN, "*.key": COLUMN, "*.value": COLUMN, "*.out": ROW},
        {"*.mlp.0": COLUMN, "*.mlp.2": ROW},
    ]
    assert pairs.unpaired == ("2",)
    assert pattern_of("model.layers.12.mlp.0") == "model.layers.*.mlp.0"


@pytest.mark.long
@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_ranks_of_the_best_layouts_do_what_the_step_does(tensor: int) -> None:
    result = search(language(), max_results=30)
    best = next(r for r in result.results if r.layout.tensor == tensor)
    models = [shard(language(), best.plan, rank).graph for rank in range(4)]
    assert compare_ranks(language(), models, draws=1).same


@pytest.mark.long
def test_layouts_that_shard_refuses_are_listed_with_its_reason() -> None:
    odd = with_dims(language(), {"B": 6})
    result = search(odd)
    reasons = {r.layout.mesh: r.reason for r in result.refused}
    assert reasons["data 4 x tensor 1"] == "B = 6 is no multiple of 4 ranks"
    assert len([r for r in result.refused if r.layout.data == 4]) == len(SHARDINGS)
    assert result.results[0].layout.data in (1, 2)
    assert result.replicated == {"2": "no row-parallel layer takes its outputs alone"}


def test_layers_of_other_sizes_are_not_split() -> None:
    result = search_layouts(perceptron(), 5, replace(H100, ranks=5), 80 * GIB)
    refused = {r.layout.mesh: r.reason for r in result.refused}
    assert "which 5 ranks cannot share equally" in refused["data 1 x tensor 5"]


@pytest.mark.long
def test_layouts_that_do_not_fit_are_counted() -> None:
    all_layouts = search(language(), max_results=100)
    sizes = sorted(r.memory for r in all_layouts.results)
    limit = sizes[3]
    some = search(language(), memory=limit, max_results=100)
    assert sorted(r.memory for r in some.results) == [s for s in sizes if s <= limit]
    assert len(some.unfit) == len([s for s in sizes if s > limit])
    none = search(language(), memory=workspace("hopper") + 1000.0)
    assert not none.results
    assert none.unfit[0].memory == min(u.memory for u in none.unfit)


@pytest.mark.long
def test_the_reason_names_causes_that_add_up() -> None:
    result = search(with_dims(language(), {"B": 4096}))
    first, *others = result.results
    second = next(other for other in others if other.step_time > first.step_time + 1.0)
    assert sum(first.causes.values()) == pytest.approx(first.step_time)
    assert 0 <= first.exposed <= first.step_time
    text = reason_of_order(first, second)
    assert text.startswith(f"{second.layout} takes ")
    assert f"longer than {first.layout}: " in text
    assert " more" in text
    slower = (second.prediction.samples > first.prediction.samples).mean()
    assert text.endswith(f"slower in {slower:.0%} of draws")
    assert first.rate == pytest.approx(4096 / first.step_time * 1e6)


@pytest.mark.long
def test_layouts_that_do_not_fit_are_recomputed() -> None:
    step = with_dims(language(), {"B": 4096})
    complete = search(step, max_results=100)
    limit = min(result.memory for result in complete.results) - 1
    result = search(step, memory=limit, max_results=100)
    (best, *_) = result.results
    assert all(r.layout.recomputed == ("*",) and r.memory <= limit for r in result.results)
    fast = {str(replace(r.layout, recomputed=())): r.step_time for r in complete.results}
    for slower in result.results:
        assert slower.step_time > fast[str(replace(slower.layout, recomputed=()))]
    small = with_recomputation(language(), best.layout.recomputed)
    models = [shard(small, best.plan, rank).graph for rank in range(4)]
    assert compare_ranks(language(), models, draws=1).same


@pytest.mark.long
@pytest.mark.parametrize("kind", SHARDINGS)
@pytest.mark.parametrize("tensor", [1, 2])
def test_overlapping_collectives_change_no_result(kind: Any, tensor: int) -> None:
    layout = StepLayout(4 // tensor, tensor, kind, PAIRS if tensor > 1 else {})
    models = [shard(language(), layout.plan(), rank).graph for rank in range(4)]
    models = [with_overlap(model) for model in models]
    streams = {op.stream for op in models[0].leaves() if op.name.startswith("_c10d")}
    assert STREAM in streams
    assert compare_ranks(language(), models, draws=1).same


@pytest.mark.long
def test_overlap_hides_communication() -> None:
    step = with_dims(language(), {"B": 1 << 19})
    serial, overlapped = (search(step, overlap=overlap) for overlap in (False, True))
    times = {str(r.layout): r for r in serial.results}
    sharded = [r for r in overlapped.results if r.layout.mesh == "data 4 x tensor 1, ZeRO-3"]
    for result in sharded:
        assert result.exposed < times[str(result.layout)].exposed
        assert result.step_time < times[str(result.layout)].step_time
    assert sharded


@pytest.mark.long
def test_bounds_are_exact_with_overlap() -> None:
    step = with_dims(perceptron(), {"B": 65536})
    best = search(step, overlap=True, max_results=2).results[:2]
    complete = search(step, overlap=True, max_results=1000)
    assert not complete.slow
    assert [r.layout for r in best] == [r.layout for r in complete.results[:2]]


def test_of_equal_steps_the_smaller_is_better() -> None:
    (first, *_) = search(perceptron()).results
    larger = replace(first, memory=first.memory + 2**20)
    assert first.order < larger.order
    assert reason_of_order(first, larger).endswith(", with 1.0 MiB more memory")


def test_a_step_without_an_update_is_said_to_lack_the_sums_of_gradients() -> None:
    step = perceptron()
    assert search(step).warnings == ()
    ops = tuple(op for op in step.ops if not op.name.startswith("Optimizer.step"))
    assert len(ops) < len(step.ops)
    (warning,) = search(replace(step, ops=ops)).warnings
    assert "gradients of parameters" in warning


def test_reasons_against_splits_name_their_number_of_ranks() -> None:
    step = with_dims(language(), {"B": 36})
    result = search_layouts(step, 9, PredictOptions(device="h100-80gb-hbm3", ranks="1x9"), 80 * GIB)
    refused = [layout for layout in result.refused if layout.layout.tensor > 1]
    assert {layout.layout.tensor for layout in refused} == {3, 9}
    for layout in refused:
        assert f"which {layout.layout.tensor} ranks cannot share" in layout.reason
