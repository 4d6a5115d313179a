"""What follows from a resized axis is what torch's meta device says, op by op."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from examples import dlrm, mlp, transformer
from irgraph import lower
from irgraph.capture.live import capture
from irgraph.ir.graph import Declared, Graph
from irgraph.ir.op import Op, Result
from irgraph.ir.tensor import Tensor
from irgraph.ops.inference import ShapeError, torch_results
from irgraph.verbs import Axis, RefusedError, resize


def steps() -> dict[str, Graph]:
    """Return small captured steps by name."""
    config = replace(dlrm.CONFIGS["ddp"], rows=(50, 40), lookups=3)
    language = transformer.train(6, "meta", layers=1, width=32, heads=2, length=10)
    return {
        "dlrm": capture(dlrm.DLRMStep(config, 6, "meta")).graph,
        "mlp": capture(mlp.train(6, "meta", 16)).graph,
        "transformer": capture(language).graph,
    }


def opened(results: tuple[Result, ...]) -> Iterator[Tensor]:
    for result in results:
        yield from result if isinstance(result, tuple) else [result] if result else []


def shapes(op: Op, graph: Graph) -> list[tuple[int, ...]] | None:
    """Return the shapes that torch gives an op's results; ``None`` where it refuses it."""
    try:
        found = torch_results(op, graph.schemas, graph.dims)
    except ShapeError:
        return None
    kept = tuple(a for a, said in zip(found, op.results, strict=False) if said is not None)
    return [tensor.shape for tensor in opened(kept)]


def said(op: Op) -> list[tuple[int, ...]]:
    """Return the shapes of an op's results in its graph."""
    return [tuple(map(int, tensor.shape)) for tensor in op.outputs]


def is_known(op: Op, graph: Graph) -> bool:
    """Tell whether torch gives an op the results that the graph has."""
    asked = op.inputs and op.outputs and not (op.is_autograd or op.is_annotation)
    return bool(asked) and shapes(op, graph) == said(op)


def alone(op: Op) -> Graph:
    """Return the graph of one op over inputs of its own."""
    held = {tensor.name: tensor for tensor in op.inputs}
    declared = tuple(Declared("input", tensor) for tensor in held.values())
    return Graph("one", tensors=declared, ops=(op,))


def known_axes() -> Iterator[tuple[Op, Axis, int]]:
    """Yield each kind of op of the steps that is known, with every axis of its operands."""
    for graph in steps().values():
        kinds = {(op.name, tuple(t.shape for t in op.inputs)): op for op in graph.leaves()}
        for op in (op for op in kinds.values() if is_known(op, graph)):
            axes = ((t.name, place, size) for t in op.inputs for place, size in enumerate(t.shape))
            yield from ((op, Axis(name, place), size) for name, place, size in axes)


def test_each_op_alone_takes_what_a_resized_axis_makes_of_it() -> None:
    tried = 0
    for op, axis, size in known_axes():
        try:
            after = resize(alone(op), axis, 3 * size).graph
        except RefusedError:
            continue
        tried += 1
        told = f"{op.name} with {axis} = {3 * size}"
        assert shapes(after.ops[0], after) == said(after.ops[0]), told
    assert tried > 300


@pytest.mark.data
@pytest.mark.parametrize(
    ("trace", "batch"), [("mlp_RTX2080Ti", "input1"), ("resnet18_RTX2080Ti", "host1")]
)
def test_a_measured_step_takes_another_batch(data_dir: Path, trace: str, batch: str) -> None:
    graph = lower(data_dir / "traces" / trace / "et.json.gz").graph
    size = graph.by_name[batch].shape[0]
    after = resize(graph, Axis(batch, 0), 2 * size).graph
    pairs = [(a, b) for a, b in zip(graph.leaves(), after.leaves(), strict=True) if a is not b]
    known = [b for a, b in pairs if is_known(a, graph)]
    assert len(known) > 100
    assert [b.origin for b in known if shapes(b, after) != said(b)] == []
