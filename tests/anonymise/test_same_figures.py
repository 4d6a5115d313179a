"""Anonymised files give the figures that the originals give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from irgraph.analyze.analysis import analyze
from irgraph.anonymise.models import anonymous_graph
from irgraph.anonymise.renaming import Anonymiser
from irgraph.anonymise.traces import anonymise
from irgraph.api import load
from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.events.tree import build_tree
from irgraph.capture.lower import lower_file
from irgraph.diagnostics import IrgraphError
from irgraph.ir.graph import Graph
from irgraph.predict.prediction import predict
from irgraph.replay.replay import build_replayer
from irgraph.text import parse, print_graph

TRACES = (
    "dlrm_8xV100/et_rank0", "dlrm_8xV100/kineto_rank0", "dlrm_4xV100_overlap/kineto_rank0",
    "formats/et_1.0.3_resnet50_1gpu", "formats/et_1.1.1_torch_compile", "formats/kineto_amd_mi250",
    "formats/kineto_event_sync_multi_stream_A100", "formats/kineto_rank_non_gpu",
    "formats/kineto_triton_A100", "formats/kineto_cpu_only", "simple_add_A100/et",
    "simple_add_A100/kineto", "mlp_RTX2080Ti/et", "mlp_RTX2080Ti/kineto",
    "resnet50_V100/kineto_workers0",
)  # fmt: skip
LARGE = ("resnet50_V100/kineto_workers0", "formats/et_1.0.3_resnet50_1gpu")


def numbers(value: Any) -> Iterator[Any]:
    """Yield every number in a value, in order."""
    if isinstance(value, dict):
        for item in value.values():
            yield from numbers(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, (int, float)):
        yield value


def figures(path: Path) -> dict[str, Any]:
    """Return what the commands say of a trace, without names."""
    found: dict[str, Any] = {}
    if path.name.startswith("kineto"):
        tree = build_tree(read_kineto(path))
        for name, said in (("replay", _replay), ("analysis", _analysis)):
            try:
                found[name] = said(tree)
            except IrgraphError as error:
                found[name] = error.diagnostics[0].message
    try:
        captured = lower_file(str(path))
    except IrgraphError as error:
        return {**found, "graph": error.diagnostics[0].message}
    found["graph"] = shape(captured.graph)
    found["notes"] = len(captured.notes)
    found["step"] = predict(captured.graph, device="v100").step_time
    return found


def _replay(tree: Any) -> Any:
    return [r.row() for r in build_replayer(tree).replay_all()]


def _analysis(tree: Any) -> Any:
    return Counter(numbers(analyze([tree]).as_json()))


def shape(graph: Graph) -> list[Any]:
    """Return what determines a model's cost, without names that stand for the program's."""
    return [
        (
            len(op.body),
            op.phase,
            op.thread,
            op.stream,
            len(op.written),
            dict(op.notes),
            [(t.dtype, t.shape, t.strides, t.device) for t in (*op.inputs, *op.outputs)],
        )
        for op in graph.walk()
    ]


@pytest.mark.data
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in LARGE else ()) for n in TRACES]
)
def test_a_trace_keeps_its_figures(data_dir: Path, tmp_path: Path, name: str) -> None:
    key = "k" if name.startswith("formats") else ""
    path = data_dir / "traces" / f"{name}.json.gz"
    (copy,) = anonymise([str(path)], tmp_path, key=key)
    before, after = figures(path), figures(copy)
    for what, said in before.items():
        assert after[what] == said, what


@pytest.mark.parametrize("path", sorted(Path("costmodels/evaluate/data").glob("*.ir*")), ids=str)
def test_a_model_keeps_its_prediction(path: Path) -> None:
    graph = load(path)
    made = anonymous_graph(graph, Anonymiser("k"))
    assert parse(print_graph(made)) == made
    assert shape(made) == shape(graph)
    one, other = (predict(g, device="v100").step_time for g in (graph, made))
    assert one == other
