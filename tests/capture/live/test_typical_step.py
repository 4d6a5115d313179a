"""Steps of a loop that differ: counters, and calls that only some steps make."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest

import irgraph
from irgraph.capture.common.result import Capture
from irgraph.capture.live import capture_file, loop
from irgraph.capture.live.typical_step import StepHistory
from irgraph.cli.common import print_step_notes
from irgraph.ir.loading import batch_loads
from irgraph.ir.resize import with_dims
from irgraph.ir.step_notes import step_notes
from irgraph.ops.verify import verify
from irgraph.predict.options import PredictOptions
from irgraph.predict.prediction import predict
from irgraph.text import IrgraphError, parse, print_graph

HEAD = """
import torch
from torch import nn

class Batches(torch.utils.data.Dataset):
    def __len__(self): return 640
    def __getitem__(self, i): return torch.ones(8)

net = nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
bank, p = torch.zeros(64, 8).cuda(), 0
for i, x in enumerate(torch.utils.data.DataLoader(Batches(), batch_size=16)):
    x = x.cuda()
    y = net(x)
"""

TAIL = """
    optimizer.zero_grad()
    y.sum().backward()
    optimizer.step()
"""


def captured(folder: Path, text: str) -> Capture:
    (folder / "train.py").write_text(f"{HEAD}{indent(text.strip(), ' ' * 4)}{TAIL}")
    result = capture_file(f"{folder}/train.py")
    assert verify(result.graph) == []
    assert result.graph.dims == {"B": 16}
    return result


def test_a_counter_is_no_function_of_the_batch(tmp_path: Path) -> None:
    result = captured(tmp_path, "bank[p:p + len(x)] = y.detach()\np = (p + len(x)) % 64")
    (queue,) = (op for op in result.graph.leaves() if op.base == "slice")
    assert [str(queue.attributes[key]) for key in ("start", "end")] == ["16", "B+16"]
    assert str(queue.outputs[0].offset) == "512"
    assert any("numbers of aten.slice" in n and "step to step" in n for n in result.notes)
    assert verify(with_dims(result.graph, {"B": 32})) == []


def test_calls_of_every_fifth_step_are_told(tmp_path: Path) -> None:
    result = captured(tmp_path, "if i % 5 == 4:\n    y = y.tanh().exp()")
    assert "tanh" not in {leaf.base for leaf in result.graph.leaves()}
    (note,) = (note for note in result.notes if note.startswith("1 in 5 steps also runs "))
    assert "1 tanh" in note
    assert note.endswith("a rarer step of the model")
    (rarer,) = result.graph.rarer
    assert rarer.settings["steps"] == "1/5"
    assert {"tanh", "exp"} <= {leaf.base for leaf in rarer.leaves()}
    assert (rarer.dims, verify(rarer)) == ({"B": 16}, [])
    assert parse(print_graph(result.graph)) == result.graph


def test_predictions_repeat_the_notes_of_a_capture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    captured_graph = captured(tmp_path, "if i % 5 == 4:\n    y = y.tanh().exp()").graph
    graph = parse(print_graph(captured_graph))
    assert graph == captured_graph
    note = "1 in 5 steps also runs"
    assert predict(graph, PredictOptions(device="h100")).warnings[0].startswith(note)
    print_step_notes(graph, "h100-torch-2.11")
    assert f"note: {note}" in capsys.readouterr().err


def test_the_model_is_the_usual_step(tmp_path: Path) -> None:
    # the second step, which is captured first, is not
    result = captured(tmp_path, "if i % 3 == 1:\n    y = y.tanh()")
    assert "tanh" not in {leaf.base for leaf in result.graph.leaves()}
    assert any(note.startswith("1 in 3 steps also runs ") for note in result.notes)


def test_equal_steps_have_no_note(tmp_path: Path) -> None:
    assert not any("steps" in note for note in captured(tmp_path, "pass").notes)


def test_steps_of_several_kinds_are_counted() -> None:
    history = StepHistory()
    for names in ("setup", "a b", "a b", "a b x", "a", "a b", "a b x x", "a b"):
        history.current += [f"aten::{name}" for name in names.split()]
        history.end_step()
    assert history.is_typical(1)
    assert not history.is_typical(3)
    assert history.notes() == [
        "1 of 7 steps also runs 1 call (1 x): not part of the model",
        "1 of 7 steps leaves out 1 call (1 b): not part of the model",
        "1 of 7 steps also runs 2 calls (2 x): not part of the model",
    ]


FIVE_KINDS = """
if i % 2:
    y = y.relu()
if i % 3 == 2:
    y = y.tanh()
if i % 4 == 3:
    y = y.exp()
"""


def test_the_model_is_the_usual_step_of_many_kinds(tmp_path: Path) -> None:
    result = captured(tmp_path, FIVE_KINDS)
    bases = [{op.base for op in step.leaves()} for step in (result.graph, *result.graph.rarer)]
    added = [sorted(step & {"relu", "tanh", "exp"}) for step in bases]
    assert added == [
        [],
        ["relu"],
        ["tanh"],
        ["exp", "relu"],
        ["relu", "tanh"],
        ["exp", "relu", "tanh"],
    ]


def test_a_model_of_an_unusual_step_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "MAX_STEPS", 0)
    (tmp_path / "train.py").write_text(f"{HEAD}{indent(FIVE_KINDS, ' ' * 4)}{TAIL}")
    result = capture_file(f"{tmp_path}/train.py")
    assert loop.UNUSUAL in step_notes(result.graph)


def test_decisions_of_rarer_steps_are_noted(tmp_path: Path) -> None:
    result = captured(tmp_path, "if i % 4 == 3:\n    if y.mean() < 9:\n        y = y.tanh()")
    assert len(result.graph.rarer) == 1
    assert any("train.py:" in note and "taken as" in note for note in result.notes)


def history_of(steps: str) -> StepHistory:
    """Return a history of steps whose calls a letter names, after one that warms up."""
    history = StepHistory()
    for letter in f"u{steps}":
        history.current.append(letter)
        history.end_step()
    return history


def test_two_kinds_of_steps_at_equal_distances_have_their_own_shares() -> None:
    kinds = history_of("uuauubuuauubuu").rarer_kinds()
    assert [(*kind.calls, str(kind.share)) for kind in kinds] == [("a", "1/6"), ("b", "1/6")]


def test_the_first_of_several_unusual_steps_may_create_a_state() -> None:
    (kind,) = history_of("uuauubuub").rarer_kinds()
    assert (*kind.calls, str(kind.share)) == ("b", "1/3")


def test_steps_at_equal_distances_that_began_late_have_no_period() -> None:
    (kind,) = history_of("uuuaua").rarer_kinds()
    assert (*kind.calls, str(kind.share)) == ("a", "1/3")


def test_a_loop_that_ends_early_has_the_size_of_its_first_steps(tmp_path: Path) -> None:
    head = HEAD.replace("return 640", "return 8 * 16")
    (tmp_path / "train.py").write_text(f"{head}{indent(FIVE_KINDS, ' ' * 4)}{TAIL}")
    text = print_graph(capture_file(f"{tmp_path}/train.py").graph)
    assert "f32[16, 8] @cpu" in text and "f32[8, 8] @cpu" not in text


def test_one_unusual_step_has_no_period() -> None:
    assert history_of("uuauuuu").notes() == [
        "1 of 7 steps also runs 1 call (1 ) and leaves out 1 call (1 ): not part of the model"
    ]


def test_the_mean_counts_rarer_steps_by_their_share(tmp_path: Path) -> None:
    graph = captured(tmp_path, "if i % 4 == 3:\n    y = y.tanh().exp()").graph
    prediction = predict(graph, PredictOptions(device="h100"))
    ((share, rarer),) = prediction.rarer_steps
    assert (share, rarer.step_time > prediction.step_time) == ("1/4", True)
    mean = 0.75 * prediction.step_time + 0.25 * rarer.step_time
    assert prediction.mean_step_time == pytest.approx(mean)
    seldom = predict(graph, PredictOptions(device="h100", period=100)).summary()
    mean = 0.99 * prediction.step_time + 0.01 * rarer.step_time
    assert seldom["mean_step_time_us"] == pytest.approx(mean)
    assert seldom["rarer_steps"][0]["share"] == "1/100"
    assert any(
        "a rarer step of the model, here 1 in 100 steps" in line for line in seldom["warnings"]
    )
    larger = predict(graph, PredictOptions(device="h100", dims={"B": 4096}))
    assert [step.priced.graph.dims for _, step in larger.rarer_steps] == [{"B": 4096}]
    with pytest.raises(IrgraphError, match="--period: at least 2 steps, not 1"):
        predict(graph, PredictOptions(device="h100", period=1))


def test_a_rewrite_has_no_rarer_steps(tmp_path: Path) -> None:
    graph = captured(tmp_path, "if i % 5 == 4:\n    y = y.tanh().exp()").graph
    resized = irgraph.run_script(graph, "resize B = 32").graph
    assert resized.rarer == ()
    assert any(note.endswith("not part of the model") for note in step_notes(resized))
    with pytest.raises(IrgraphError, match="the model has no rarer step"):
        predict(resized, PredictOptions(device="h100", period=5))


EVALUATION = """
if i % 4 == 3:
    with torch.no_grad():
        for v in torch.utils.data.DataLoader(Batches(), batch_size=320):
            net(v.cuda()).exp()
"""


def test_an_evaluation_belongs_to_the_step_of_its_update(tmp_path: Path) -> None:
    text = f"{HEAD}{TAIL}" + EVALUATION.replace("\n", "\n    ")
    (tmp_path / "train.py").write_text(text)
    graph = capture_file(f"{tmp_path}/train.py", loader="1ms").graph
    (rarer,) = graph.rarer
    assert [leaf.base for leaf in rarer.leaves()].count("exp") == 2
    assert "exp" not in {leaf.base for leaf in graph.leaves()}
    assert (len(batch_loads(graph)), len(batch_loads(rarer))) == (1, 3)


def test_steps_that_leave_calls_out_are_rarer_steps(tmp_path: Path) -> None:
    result = captured(tmp_path, "if i % 3:\n    y = y.tanh()")
    (rarer,) = result.graph.rarer
    assert "tanh" in {leaf.base for leaf in result.graph.leaves()}
    assert "tanh" not in {leaf.base for leaf in rarer.leaves()}
    assert rarer.settings["steps"] == "1/3"


def test_a_step_that_does_not_recur_is_named(tmp_path: Path) -> None:
    result = captured(tmp_path, "if i == 4:\n    y = y.tanh().exp()")
    assert result.graph.rarer == ()
    (note,) = (note for note in result.notes if " steps also run" in note)
    assert note.endswith("not part of the model")
