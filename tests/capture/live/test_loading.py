"""Loaders of captured programs: a batch is part of the step, or its workers run beside it."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import pytest

from irgraph.capture.common.result import Capture
from irgraph.capture.live import capture_file, capturing
from irgraph.ir.loading import LOAD, TIME_SOURCE, UNTIMED, batch_loads, loading_time
from irgraph.ops.verify import verify
from irgraph.predict.answer import answer
from irgraph.predict.prediction import predict
from irgraph.text import parse, print_graph

DELAY = 0.002

LOOP = f"""
import sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self): return 160
    def __getitem__(self, i):
        time.sleep({DELAY})
        return torch.ones(8)

net = nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
rows = 0
for i, x in enumerate(DataLoader(Slow(), batch_size=8, num_workers=int((sys.argv[1:] or [0])[0]))):
    net(x.cuda()).sum().backward()
    if i % EVERY == EVERY - 1:
        optimizer.step()
        optimizer.zero_grad()
"""


def captured(folder: Path, *arguments: str, every: int = 1, loader: str | None = None) -> Capture:
    (folder / "train.py").write_text(LOOP.replace("EVERY", str(every)))
    result = capture_file(f"{folder}/train.py", arguments=arguments, loader=loader)
    assert verify(result.graph) == []
    return result


def test_the_time_of_the_program_s_own_loader_is_measured(tmp_path: Path) -> None:
    result = captured(tmp_path)
    (load,) = batch_loads(result.graph)
    assert 8 * DELAY <= loading_time(load) / 1e6 < 40 * DELAY
    # the next batch is made after all launches of this step
    assert result.graph.ops[-1] is load
    assert "*B" in str(load.attributes["nanoseconds"])
    assert any("on this CPU" in note for note in result.notes)
    (warning,) = (line for line in predict(result.graph, "h100").warnings if "loading" in line)
    assert warning.startswith("input-bound: ")
    assert "by the host itself, measured on the CPU of the capture" in warning


def test_workers_load_beside_the_step(tmp_path: Path) -> None:
    graph = captured(tmp_path, "2", loader="12ms").graph
    (load,) = batch_loads(graph)
    assert (load.thread, graph.ops[0]) == ("loader", load)
    assert predict(graph, "h100").step_time == pytest.approx(6000.0)
    alone = predict(graph, "h100", loader="0").step_time
    assert predict(graph, "h100", loader="1us").step_time == alone
    assert parse(print_graph(graph)) == graph


def test_accumulation_loads_each_batch_where_the_loop_takes_it(tmp_path: Path) -> None:
    graph = captured(tmp_path, every=2, loader="5ms").graph
    positions = [index for index, op in enumerate(graph.ops) if op.name == LOAD]
    assert positions[1] == len(graph.ops) - 1
    products = [i for i, op in enumerate(graph.ops) if op.base == "linear"]
    assert products[0] < positions[0] < products[1]
    assert TIME_SOURCE not in graph.settings
    prediction = predict(graph, "h100")
    assert prediction.path.by_cause()["loader"] == pytest.approx(10_000.0, rel=0.2)
    assert prediction.summary()["batches"] == 2
    rate = next(line for line in answer(prediction.summary()) if "samples a second" in line)
    assert rate.startswith("train (B = 8): 1,")  # 16 samples in more than 10 ms


def test_a_loop_with_marks_loads_too() -> None:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    loader = DataLoader(TensorDataset(torch.ones(64, 8)), 16, shuffle=True)
    torch.manual_seed(3)
    with capturing() as capture:
        net = torch.nn.Linear(8, 8).to("cuda")
        for (x,) in loader:
            net(x.cuda()).sum().backward()
            capture.step()
    assert capture.result is not None
    (load,) = batch_loads(capture.result.graph)
    assert 1.0 < loading_time(load) < 1e5


def test_a_loader_that_cannot_run_again_is_named(tmp_path: Path) -> None:
    text = LOOP.replace("EVERY", "1").replace("return torch.ones(8)", "return torch.ones(8).cuda()")
    (tmp_path / "train.py").write_text(text.replace("x.cuda()", "x"))
    result = capture_file(f"{tmp_path}/train.py")
    assert batch_loads(result.graph) == []
    note = "loading of batches, whose time is unknown (--loader 12ms specifies it)"
    assert any(note in line for line in predict(result.graph, "h100").warnings)
    assert any("a loader that is iterated again" in line for line in result.notes)


def test_a_loader_of_rarer_steps_that_cannot_run_again_is_noted(tmp_path: Path) -> None:
    evaluation = """
    if i % 4 == 3:
        for y in DataLoader([torch.ones(8).cuda()] * 16, batch_size=8, collate_fn=on_card):
            net(y)
"""
    collate = "def on_card(rows): return torch.stack([row.cuda() for row in rows])\nrows = 0"
    text = LOOP.replace("EVERY", "1").replace("rows = 0", collate) + evaluation
    (tmp_path / "train.py").write_text(text)
    result = capture_file(f"{tmp_path}/train.py")
    (rarer,) = result.graph.rarer
    assert [len(batch_loads(step)) for step in (result.graph, rarer)] == [1, 1]
    assert UNTIMED in result.notes


def test_a_slow_loader_is_not_timed_for_long(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP.replace("EVERY", "1").replace(str(DELAY), "0.1"))
    started = perf_counter()
    (load,) = batch_loads(capture_file(f"{tmp_path}/train.py").graph)
    assert loading_time(load) >= 8e5
    assert perf_counter() - started < 60
