"""Training scripts of users of libraries: captured, counted as by torch, and resized."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from irgraph.ir.compare import same_op
from irgraph.ir.graph import Graph
from irgraph.ir.resize import with_dims
from irgraph.predict.options import PredictOptions
from irgraph.predict.prediction import predict
from irgraph.text import parse
from tests.capture.programs.captured import MARK
from tests.capture.programs.library_scripts import SCRIPTS
from tests.capture.programs.test_programs import comparable_flops, output
from tests.conftest import NO_LIBRARY

BATCH, OTHER = 8, 6

UNCUT = ("torch_geometric",)
"""Packages whose batches are no tensors of equal rows: their steps have no batch dimension."""


def captured(file: Path, batch: int) -> Graph:
    """Return the model of a script's step at a batch size."""
    text = output("tests.capture.programs.captured", str(file), str(batch), folder=file.parent)
    return parse(text.partition(MARK)[2])


def check_resized(graph: Graph, fresh: Graph) -> None:
    """Compare a model at the size of another one, call by call."""
    resized = with_dims(graph, {"B": OTHER})
    assert len(resized.ops) == len(fresh.ops)
    pairs = zip(resized.ops, fresh.ops, strict=True)
    # the time of a load op is measured
    assert {b.base for a, b in pairs if not same_op(a, b)} <= {"load_batch"}


@pytest.mark.slow
@pytest.mark.parametrize("package", SCRIPTS)
def test_a_script_of_a_library_counts_the_operations_of_torch(package: str, tmp_path: Path) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package}: {NO_LIBRARY}")
    file = tmp_path / "train.py"
    file.write_text(SCRIPTS[package])
    counted = output("tests.capture.programs.counted", str(file), str(BATCH), folder=tmp_path)
    graph = captured(file, BATCH)
    assert comparable_flops(graph) == int(counted.split()[-1]) > 0
    assert not predict(graph, PredictOptions(device="a100")).priced.unknown
    if package in UNCUT:
        assert not graph.dims
    else:
        check_resized(graph, captured(file, OTHER))
