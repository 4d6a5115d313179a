"""The batch dimension of captures, also where the batch is one sample."""

from __future__ import annotations

from pathlib import Path

import pytest

from irgraph.capture.common.symbolic import other_sizes
from irgraph.capture.live import capture_file
from irgraph.ir.resize import with_dims
from irgraph.text import parse, print_graph

MLP = f"{Path(__file__).resolve().parents[3]}/examples/mlp.py:train(width=16)"


@pytest.mark.parametrize("batch", [1, 2, 7, 16, 2048])
def test_other_sizes_are_no_single_sample_and_differ(batch: int) -> None:
    sizes = other_sizes(batch)
    assert 1 not in sizes and batch not in sizes and len(set(sizes)) >= 2


def test_a_batch_of_one_has_its_dimension() -> None:
    captured = capture_file(MLP, batch=1)
    graph = captured.graph
    assert graph.dims == {"B": 1}
    host = next(d.tensor for d in graph.tensors if d.tensor.device == "cpu")
    assert (str(host.shape[0]), int(host.shape[0])) == ("B", 1)
    assert parse(print_graph(graph)) == graph
    grown = with_dims(graph, {"B": 64})
    assert print_graph(grown) == print_graph(capture_file(MLP, batch=64).graph)
    assert not any("batch" in note for note in captured.notes)


def test_other_calls_at_a_batch_of_one_are_told(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\ndef step(batch, device):\n    x = torch.ones(batch, 3, device=device)\n"
        "    return lambda: x + 1 if batch > 1 else x * 2\n"
    )
    captured = capture_file(f"{file}:step", batch=1)
    assert [op.name for op in captured.graph.ops] == ["aten.add"]
    assert any(
        note.startswith("at batch size 1 torch makes other calls") for note in captured.notes
    )


def test_a_batch_of_one_that_changes_nothing_keeps_the_plain_graph(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\ndef step(batch, device):\n    x = torch.ones(3, device=device)\n"
        "    return lambda: x + 1\n"
    )
    assert capture_file(f"{file}:step", batch=1).graph.dims == {}
