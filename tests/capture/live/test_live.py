"""Live capture: identities, batch dimension, accelerator forms, errors of the user's program."""

from __future__ import annotations

import copy
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from irgraph.capture.common.result import Capture
from irgraph.capture.execution_trace import lower_execution_trace
from irgraph.capture.live import capture, capture_file
from irgraph.capture.live.target import load_target
from irgraph.ir.dependence import dependences
from irgraph.ir.graph import Graph
from irgraph.ir.loading import UNTIMED
from irgraph.ir.op import Op
from irgraph.ir.step_notes import step_notes
from irgraph.ops.verify import verify
from irgraph.predict.prediction import predict
from irgraph.text import IrgraphError, parse, print_graph

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SMALL = "(max_rows=50, lookups=3)"


def sound(captured: Capture) -> Graph:
    assert verify(captured.graph) == []
    text = print_graph(captured.graph)
    assert parse(text) == captured.graph
    return captured.graph


def leaves(graph: Graph) -> list[Op]:
    return [op for op in graph.leaves() if not op.is_scope]


@pytest.fixture(scope="module")
def dlrm() -> Capture:
    return capture_file(f"{EXAMPLES}/dlrm.py:default", batch=2048)


def test_dlrm_is_captured_soundly(dlrm: Capture) -> None:
    graph = sound(dlrm)
    assert sum(1 for _ in graph.top_level()) > 100
    assert [d.label for d in graph.tensors if d.role == "param"][:2] == [
        "bot_mlp.0.weight",
        "bot_mlp.0.bias",
    ]


def test_the_batch_dimension_is_found(dlrm: Capture) -> None:
    graph = dlrm.graph
    assert graph.dims == {"B": 2048}
    assert not any("batch" in note for note in dlrm.notes)
    shapes = {d.tensor.name: "x".join(map(str, d.tensor.shape)) for d in graph.tensors}
    assert [shapes[f"host{i}"] for i in (1, 2, 3, 4)] == ["Bx512", "8xB", "8x100*B", "Bx1"]
    offsets = {str(op.outputs[0].offset) for op in graph.ops if op.name == "aten.select"}
    assert {"0", "8*B", "800*B"} <= offsets


def test_host_tensors_are_copied_to_the_device(dlrm: Capture) -> None:
    copies = [op for op in dlrm.graph.leaves() if op.name == "aten._to_copy"]
    ways = [(op.inputs[0].device, op.outputs[0].device) for op in copies]
    # dense, offsets, indices; the interaction's two index lists; target; loss; the lists again
    assert ways == [("cpu", "gpu0")] * 6 + [("gpu0", "cpu")] + [("cpu", "gpu0")] * 2


def test_a_layer_feeds_the_next(dlrm: Capture) -> None:
    chain = [op for op in dlrm.graph.ops if op.module.startswith("top_mlp.")]
    chain = [op for op in chain if op.phase == "forward"]
    assert [op.base for op in chain] == ["linear", "relu"] * 3 + ["linear", "sigmoid"]
    for before, after in pairwise(chain):
        assert after.operands[0] is before.results[0]


def test_backward_reads_what_forward_saved(dlrm: Capture) -> None:
    graph = dlrm.graph
    relu = next(op for op in graph.ops if op.module == "bot_mlp.1" and op.phase == "forward")
    back = next(op for op in graph.ops if op.module == "bot_mlp.1" and op.phase == "backward")
    assert back.name == "autograd.ReluBackward0"
    assert back.body[0].operands[1] is relu.results[0]


def test_views_of_a_weight_share_its_buffer(dlrm: Capture) -> None:
    linear = next(op for op in dlrm.graph.ops if op.name == "aten.linear")
    weight, view = linear.operands[1], linear.body[0].results[0]
    assert (view.buffer, view.strides) == (weight.buffer, (1, 512))  # type: ignore[union-attr]


def test_gradients_are_accumulated_where_the_optimizer_reads_them(dlrm: Capture) -> None:
    update = next(op for op in dlrm.graph.walk() if op.phase == "optimizer" and op.base == "add_")
    assert [d.label for d in dlrm.graph.tensors if d.tensor is update.operands[1]] == [
        "bot_mlp.0.weight.grad"
    ]


def test_index_backward_has_its_accelerator_form(dlrm: Capture) -> None:
    scope = next(op for op in dlrm.graph.ops if op.name == "autograd.IndexBackward0")
    names = [op.base for op in scope.body]
    assert names == ["new_zeros", "to", "to", "_index_put_impl_"]
    assert scope.body[-1].written == {scope.body[0].results[0].name}  # type: ignore[union-attr]


@pytest.mark.long
def test_origins_do_not_differ_from_run_to_run() -> None:
    target = f"{EXAMPLES}/dlrm.py:ddp{SMALL}"
    texts = {print_graph(capture_file(target, batch=32).graph) for _ in range(2)}
    assert len(texts) == 1


def test_sparse_gradients_are_captured_on_meta() -> None:
    target = f"{EXAMPLES}/dlrm.py:ddp(max_rows=50, lookups=3, sparse=True)"
    captured = capture_file(target, batch=32)
    graph = sound(captured)
    tables = {d.tensor for d in graph.tensors if d.label.startswith("tables.")}
    updates = [op for op in graph.walk() if op.name == "aten.add_" and op.operands[0] in tables]
    assert len(updates) == 8
    assert {op.inputs[1].strides for op in updates} == {(0, 0)}
    assert not any(op.name == "aten.clone" and op.phase == "backward" for op in graph.walk())


def test_an_optimizer_chooses_as_on_an_accelerator() -> None:
    graph = sound(capture_file(f"{EXAMPLES}/mlp.py:train", batch=32))
    names = {op.name for op in graph.walk()}
    assert "aten._foreach_addcdiv_" in names
    assert "aten.addcdiv_" not in names


def test_inference_keeps_its_composite_calls() -> None:
    graph = sound(capture_file(f"{EXAMPLES}/mlp.py:infer", batch=32))
    linear = next(op for op in graph.ops if op.name == "aten.linear")
    assert [op.name for op in linear.body] == ["aten.t", "aten.addmm"]
    assert {d.role for d in graph.tensors} == {"input", "param"}


def test_a_step_that_reads_a_value_gets_one_and_is_told() -> None:
    x = torch.ones(3, device="meta")
    captured = capture(lambda: x.sum().item())
    (note,) = captured.notes
    assert note.startswith("test_live.py:")
    assert note.endswith("taken as 1 (sum of an unknown value)")


def test_cpu_capture_says_what_it_lacks() -> None:
    captured = capture_file(f"{EXAMPLES}/dlrm.py:ddp{SMALL}", batch=32, device="cpu")
    graph = sound(captured)
    assert {t.device for op in graph.walk() for t in op.outputs} == {"gpu0"}
    assert any("copies between host and device are missing" in note for note in captured.notes)
    assert any("backward ran on the calling thread" in note for note in captured.notes)


def test_checkpointing_recomputes_inside_backward() -> None:
    """An exception ends the recomputation, which tears the trace's nesting."""
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).to("meta")
    last = torch.nn.Linear(4, 4, device="meta")
    x = torch.ones(2, 4, device="meta")

    def step() -> None:
        kept = torch.utils.checkpoint.checkpoint(layers, x, use_reentrant=False)
        last(kept).sum().backward()

    graph = sound(capture(step, model=torch.nn.ModuleList([layers, last])))
    scope = next(op for op in graph.ops if op.name == "autograd.ReluBackward0")
    assert [op.base for op in scope.body] == ["linear", "relu", "detach", "threshold_backward"]
    assert scope.body[-1].inputs[1].buffer == scope.body[1].outputs[0].buffer
    assert [d.role for d in graph.tensors if not d.label] == ["input"]


@pytest.mark.parametrize("depth", [3, 60])
def test_checkpointing_many_layers_nests_none_in_another(depth: int) -> None:
    """What follows an interrupted range is beside it, in backward and after it."""
    block = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
    layers = torch.nn.ModuleList(copy.deepcopy(block) for _ in range(depth)).to("meta")
    optimizer = torch.optim.SGD(layers.parameters(), 0.1, foreach=False)
    x = torch.ones(2, 4, device="meta")

    def step(recomputed: bool = True) -> None:
        y = x
        for layer in layers:
            way = {"use_reentrant": False}
            y = torch.utils.checkpoint.checkpoint(layer, y, **way) if recomputed else layer(y)
        y.sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    found = sound(capture(step, model=layers))
    plain = sound(capture(lambda: step(False), model=layers))
    scopes, wanted = (
        [op.name for op in graph.ops if op.name.startswith(("autograd.", "Optimizer."))]
        for graph in (found, plain)
    )
    assert scopes == wanted
    again = [op for op in found.ops if op.name == "autograd.AddmmBackward0" if len(op.body) > 8]
    assert len(again) == depth  # each holds what its layer computes again
    assert {op.module.partition(".")[0] for op in again} == {str(n) for n in range(depth)}


class Convolutional:
    """A training step over convolutions, normalisation, attention and views."""

    def __init__(self) -> None:
        nn = torch.nn
        self.model = nn.ModuleDict(
            {
                "conv": nn.Conv2d(3, 8, 3, padding=1),
                "norm": nn.BatchNorm2d(8),
                "wide": nn.Linear(512, 16),
                "attention": nn.MultiheadAttention(16, 2, batch_first=True),
                "last": nn.Linear(16, 4),
            }
        )
        self.x, self.classes = torch.randn(4, 3, 8, 8), torch.zeros(4, dtype=torch.long)
        self.optimizer = torch.optim.Adam(self.model.parameters(), foreach=False)

    def __call__(self) -> None:
        model = self.model
        self.optimizer.zero_grad()
        x = torch.relu_(model["norm"](model["conv"](self.x))).flatten(1)
        x = model["wide"](x).unsqueeze(1).expand(-1, 3, -1)
        x, _ = model["attention"](x, x, x)
        torch.nn.functional.cross_entropy(model["last"](x.mean(1)), self.classes).backward()
        self.optimizer.step()


def test_a_trace_alone_gives_the_same_dependences(tmp_path: Path) -> None:
    """What a trace's reused ids are taken to mean agrees with the true identities."""
    step = Convolutional()
    step()
    step()
    file = tmp_path / "et.json"
    observer = torch.profiler.ExecutionTraceObserver().register_callback(str(file))
    observer.start()
    step()
    observer.stop()
    observer.unregister_callback()
    told, true = (
        leaves(lower_execution_trace(file).graph),
        leaves(capture(step, device="cpu").graph),
    )
    # a dispatch mode keeps torch from adding in place
    copying = {i for i, (a, b) in enumerate(zip(told, true, strict=True)) if a.name != b.name}
    assert {(told[i].name, true[i].name) for i in copying} <= {
        ("aten.add_", "aten.add"),
        ("aten._reshape_alias", "aten.view"),
    }
    assert _edges(told, copying) == _edges(true, copying)
    for i, (a, b) in enumerate(zip(told, true, strict=True)):
        if i not in copying:
            assert [(t.shape, t.strides) for t in a.outputs] == [
                (t.shape, t.strides) for t in b.outputs
            ]


def _edges(ops: list[Op], but: set[int]) -> set[tuple[int, int, str]]:
    """Return the dependences but those of some ops and of what takes their results."""
    near = but | {i + 1 for i in but} | {i + 2 for i in but}
    return {(d.before, d.after, d.kind) for d in dependences(ops) if not {d.before, d.after} & near}


def write(folder: Path, text: str) -> str:
    (folder / "mine.py").write_text(text)
    return f"{folder}/mine.py"


def failing(target: str, **options: str) -> IrgraphError:
    with pytest.raises(IrgraphError) as caught:
        capture_file(target, batch=8, **options)  # type: ignore[arg-type]
    return caught.value


def test_target_without_a_name() -> None:
    with pytest.raises(IrgraphError) as caught:
        load_target("examples/dlrm.py")
    assert caught.value.exit_code == 2
    assert "names no function" in str(caught.value)
    assert "FILE.py:NAME" in str(caught.value)


def test_numbers_that_change_from_step_to_step_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_text(
        "import torch\n"
        "model = torch.nn.Linear(4, 4).cuda()\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "def make(batch, device):\n"
        "    def step():\n"
        "        model(torch.ones(batch, 4).cuda()).sum().backward()\n"
        "        optimizer.step()\n"
        "    return step\n"
    )
    found = capture_file(f"{path}:make", batch=16)
    assert found.graph.dims == {"B": 16}
    assert not any("depends on the batch" in note for note in found.notes)


def test_target_file_not_there() -> None:
    assert str(failing("none.py:step")).startswith("none.py: error: no such file")


def test_target_name_not_there_names_a_near_one() -> None:
    assert "it has no 'defalt'; did you mean 'default'?" in str(
        failing(f"{EXAMPLES}/dlrm.py:defalt")
    )


def test_target_that_is_no_function(tmp_path: Path) -> None:
    assert "step is int, not a function" in str(failing(write(tmp_path, "step = 3\n") + ":step"))


def test_target_options_that_are_no_literals() -> None:
    assert "cannot read the options of 'default(rows=x)'" in str(
        failing(f"{EXAMPLES}/dlrm.py:default(rows=x)")
    )


def test_target_file_that_is_no_python(tmp_path: Path) -> None:
    message = str(failing(write(tmp_path, "def step(:\n") + ":step"))
    assert "mine.py:1:10: error: not valid Python" in message


def test_target_file_that_raises_names_its_line(tmp_path: Path) -> None:
    message = str(failing(write(tmp_path, "x = 1\nx / 0\n") + ":step"))
    assert "mine.py:2:1: error: the file failed while it was loaded: ZeroDivisionError" in message


def test_function_that_raises_names_its_line(tmp_path: Path) -> None:
    text = "def step(batch, device):\n    raise ValueError('no data')\n"
    message = str(failing(write(tmp_path, text) + ":step"))
    assert "mine.py:2:1: error: step failed: ValueError: no data" in message


def test_function_that_returns_no_step(tmp_path: Path) -> None:
    message = str(failing(write(tmp_path, "def step(batch, device):\n    return 3\n") + ":step"))
    assert "step returned int, not a step that can be called" in message


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Net", "Net is a class of (width), and it is called with (batch, device): too many"),
        ("Bare", "the forward of Bare is a function of (self, x), and it is called with ()"),
        ("net", "net is a module of (x), and it is called with (batch, device): too many"),
        ("one", "one is a function of (batch), and it is called with (batch, device): too many"),
        (
            "step(lenth=3)",
            "step is a function of (batch, device, length=2), and it is called with "
            "(batch, device, lenth=…): got an unexpected keyword argument 'lenth'",
        ),
        ("step", "the step of step is a function of (x), and it is called with (): missing"),
        ("model", "the step of model is a module of (x), and it is called with (): missing"),
    ],
)
def test_what_cannot_be_called_with_a_batch_and_a_device_says_so(
    tmp_path: Path, name: str, message: str
) -> None:
    text = """
from torch import nn
class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
    def forward(self, x):
        return x
class Bare(nn.Module):
    def forward(self, x):
        return x
net = Net(3)
def one(batch):
    return batch
def step(batch, device, length=2):
    return lambda x: x
def model(batch, device):
    return net
"""
    error = failing(write(tmp_path, text) + f":{name}")
    assert message in str(error)
    assert "hint: name a function of (batch, device)" in str(error) or "return a fun" in str(error)


def test_a_class_of_batch_and_device_whose_objects_can_be_called_is_a_step(tmp_path: Path) -> None:
    text = """
import torch
class Step:
    def __init__(self, batch, device):
        self.x = torch.zeros(batch, device=device)
    def __call__(self):
        return self.x + 1
"""
    graph = capture_file(write(tmp_path, text) + ":Step").graph
    assert [op.name for op in graph.leaves()] == ["aten.add"]


def test_step_that_raises_names_its_line(tmp_path: Path) -> None:
    text = "def step(batch, device):\n    def run():\n        raise OSError\n    return run\n"
    message = str(failing(write(tmp_path, text) + ":step"))
    assert "mine.py:3:1: error: mine_step failed while first running it: OSError" in message


HINTS = {
    "x = torch.cuda.set_sync_debug_mode(1)": "use the device that the function is given",
    "x = torch.ones(batch, device=device).numpy()": "tensors on meta have no values",
    "x = torch.rand(batch, device=device).nonzero()": "depends on values",
    "x = torch.nn.Linear(2, 2, device=device)(torch.ones(batch, 2))": "copy data in the step",
}


@pytest.mark.parametrize("line", HINTS)
@pytest.mark.skipif(torch.cuda.is_available(), reason="these work where there is a CUDA device")
def test_what_needs_a_real_device_gets_a_hint(line: str, tmp_path: Path) -> None:
    text = f"import torch\ndef step(batch, device):\n    {line}\n    return lambda: x + 1\n"
    error = failing(write(tmp_path, text) + ":step")
    assert "mine.py:3:1: error: step failed" in str(error)
    assert HINTS[line] in str(error)


def test_step_that_calls_nothing(tmp_path: Path) -> None:
    message = str(failing(write(tmp_path, "def step(batch, device):\n    return int\n") + ":step"))
    assert "mine_step called no operator" in message


STRUCTURES: dict[str, tuple[str, str]] = {
    "branches": ("x + 1 if batch > 10 else x * 2", "the calls depend on it"),
    "fails": ("x.view(16) if batch == 16 else x.view(7)", "other sizes fail: mine_step failed"),
}


@pytest.mark.parametrize("case", STRUCTURES)
def test_a_step_that_depends_on_the_batch_keeps_plain_numbers(case: str, tmp_path: Path) -> None:
    body, reason = STRUCTURES[case]
    text = (
        "import torch\ndef step(batch, device):\n    x = torch.ones(batch, device=device)\n"
        f"    return lambda: {body}\n"
    )
    captured = capture_file(write(tmp_path, text) + ":step", batch=16)
    assert captured.graph.dims == {}
    assert any(note.startswith(f"no batch dimension: {reason}") for note in captured.notes)


def test_a_no_op_conversion_has_no_result() -> None:
    x = torch.ones(3, device="meta")
    graph = sound(capture(lambda: x.to(torch.float32) + 1))
    assert [op.results == () for op in graph.ops] == [True, False]


def test_numbers_stay_attributes() -> None:
    x = torch.ones(3, device="meta")
    graph = sound(capture(lambda: x * 2.5))
    assert graph.ops[0].attributes == {"other": 2.5}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("async def make(batch, device): return int", "make is an async function"),
        ("def make(batch, device): yield int", "make is a generator"),
        ("def make(batch, device):\n  async def step(): pass\n  return step", "an async function"),
        ("def make(batch, device):\n  def step(): yield\n  return step", "is a generator"),
    ],
    ids=["async", "generator", "async-step", "generator-step"],
)
def test_a_step_that_does_not_run_when_it_is_called(text: str, what: str, tmp_path: Path) -> None:
    file = tmp_path / "odd.py"
    file.write_text(text)
    with pytest.raises(IrgraphError, match=f"{what}: calling it runs nothing"):
        capture_file(f"{file}:make", batch=2)


def test_what_is_under_way_is_told(tmp_path: Path) -> None:
    told: list[str] = []
    file = tmp_path / "one.py"
    file.write_text(
        "import torch\n"
        "def make(batch, device):\n"
        "    x = torch.empty(batch, device=device)\n"
        "    return lambda: x + 1\n"
    )
    capture_file(f"{file}:make", batch=2, symbolic=False, doing=told.append)
    assert told == ["capturing make at batch size 2"]


def test_names_survive_casts_that_change_nothing() -> None:
    layer = torch.nn.Linear(4, 4, bias=False, device="meta")
    x = torch.ones(2, 4, device="meta")
    graph = sound(capture(lambda: torch.nn.functional.linear(x, layer.weight.float()), model=layer))
    assert [d.label for d in graph.tensors if d.role == "param"] == ["weight"]


def test_a_step_that_never_uses_the_device_is_told() -> None:
    captured = capture(lambda: torch.ones(3).sum())
    assert any("nothing in the step is on the accelerator" in note for note in captured.notes)
    assert any("nothing of this step runs" in w for w in predict(captured.graph).warnings)


def test_what_a_loader_calls_is_left_out_at_any_batch_size(tmp_path: Path) -> None:
    file = tmp_path / "loaded.py"
    file.write_text(LOADED)
    captured = capture_file(f"{file}:train", batch=4)
    assert captured.graph.dims == {"B": 4}
    assert UNTIMED in captured.notes
    assert UNTIMED in step_notes(captured.graph)
    timed = predict(captured.graph, device="h100", loader="12ms")
    assert UNTIMED not in timed.warnings
    assert timed.step_time > 12_000
    assert not any(op.name == "aten.stack" for op in captured.graph.walk())


LOADED = """
import torch
from torch.utils.data import DataLoader, TensorDataset

def train(batch, device):
    model = torch.nn.Linear(4, 2).to(device)

    def step():
        (x,) = next(iter(DataLoader(TensorDataset(torch.rand(batch, 4)), batch_size=batch)))
        model(x.to(device)).sum().backward()

    return step
"""


def test_a_part_of_what_was_written_is_captured() -> None:
    weight, kept = torch.randn(4, requires_grad=True), torch.zeros(2)

    def step() -> None:
        whole = weight * 2
        part = whole.chunk(2)[0]
        whole.relu_()
        kept.copy_(part.detach())

    assert "aten.split" in {op.name for op in capture(step, device="cpu").graph.leaves()}
