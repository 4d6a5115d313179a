"""Loops that are there already, captured step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import rnn
from torch.utils.data import DataLoader, TensorDataset

from irgraph.capture.common.result import Capture
from irgraph.capture.live import Capturing, build_graph, capture, capturing
from irgraph.capture.live.batches import cut_to, length_of
from irgraph.ir.loading import LOAD
from irgraph.ir.op import Op
from irgraph.ops.verify import verify
from irgraph.text import IrgraphError, parse, print_graph


def loader(rows: int = 100, **options: Any) -> DataLoader[Any]:
    data = TensorDataset(torch.rand(rows, 8), torch.randint(5, (rows,)))
    return DataLoader(data, 16, **options)


def built() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 5)).cuda()
    return model, torch.optim.AdamW(model.parameters())


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, x: Any, y: Any) -> torch.Tensor:
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(x.cuda()), y.cuda())
    loss.backward()
    optimizer.step()
    return loss.detach()


def looped(body: Callable[[Capturing], object], *, pinned: bool = False) -> Capture:
    with capturing(pinned=pinned) as loop:
        body(loop)
    assert loop.result is not None
    assert verify(loop.result.graph) == []
    assert parse(print_graph(loop.result.graph)) == loop.result.graph
    return loop.result


def calls(captured: Capture) -> list[str]:
    return [op.name for op in captured.graph.leaves() if not op.is_scope]


def plain(loop: Capturing) -> None:
    model, optimizer = built()
    for _ in range(3):
        for x, y in loader():
            trained(model, optimizer, x, y)
            loop.step()


def test_a_loop_gives_the_model_of_its_step() -> None:
    found = looped(plain)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 5)).to("meta")
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.rand(16, 8), torch.randint(5, (16,))

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x.to("meta")), y.to("meta"))
        loss.backward()
        optimizer.step()
        return loss.detach()

    assert calls(found) == [*calls(capture(step)), LOAD]
    assert found.graph.dims == {"B": 16}
    assert [d.label for d in found.graph.tensors if d.role == "param"] == [
        "0.weight",
        "0.bias",
        "2.weight",
        "2.bias",
    ]


def test_numbers_of_the_step_are_not_taken_for_the_batch() -> None:
    """Adam's corrections change from step to step."""
    found = looped(plain)
    assert not any("depends on the batch size" in note for note in found.notes)


def test_what_the_loop_keeps_is_returned() -> None:
    def body(loop: Capturing) -> None:
        model, optimizer = built()
        losses = []
        for x, y in loader():
            losses.append(trained(model, optimizer, x, y))
            loop.step()

    graph = looped(body).graph
    (loss,) = (op for op in graph.walk() if op.name == "aten.cross_entropy_loss")
    assert graph.returned is not None
    assert loss.outputs[0].buffer in {tensor.buffer for tensor in graph.returned}


def test_the_loop_ends_when_nothing_more_is_needed() -> None:
    counts = []

    def body(loop: Capturing) -> None:
        model, optimizer = built()
        for x, y in loader(10_000):
            counts.append(len(x))
            trained(model, optimizer, x, y)
            loop.step()

    looped(body)
    assert counts == [16, 16, 16, 8, 4]


def test_gradients_of_several_batches() -> None:
    def body(loop: Capturing) -> None:
        model, optimizer = built()
        for i, (x, y) in enumerate(loader(1000)):
            functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
            if i % 2:
                optimizer.step()
                optimizer.zero_grad()
                loop.step()

    found = looped(body)
    assert found.graph.dims == {"B": 16}
    assert calls(found).count("aten.nll_loss_forward") == 2


def sizes_of(found: Capture) -> list[str]:
    """Return the sizes of what is copied to the device, as they are written."""
    copies = [op for op in found.graph.leaves() if op.name == "aten._to_copy"]
    return [str(op.inputs[0].shape[0]) for op in copies if op.inputs[0].dtype == "f32"]


def test_loaders_of_a_step_are_cut_in_proportion() -> None:
    def body(loop: Capturing) -> None:
        model, optimizer = built()
        more = DataLoader(TensorDataset(torch.rand(1000, 8)), 48)
        for (x, y), (z,) in zip(loader(1000), more, strict=False):
            trained(model, optimizer, torch.cat([x.cuda(), z.cuda()])[: len(x)], y)
            loop.step()

    found = looped(body)
    assert found.graph.dims == {"B": 16}
    assert sizes_of(found) == ["B", "3*B"]


def test_a_loader_for_validation_leaves_the_batch_alone() -> None:
    def body(loop: Capturing) -> None:
        model, optimizer = built()
        rest = DataLoader(TensorDataset(torch.rand(50, 8)), 10)
        for (z,) in rest:
            model(z.cuda())
        for x, y in loader(1000):
            trained(model, optimizer, x, y)
            loop.step()

    found = looped(body)
    assert found.graph.dims == {"B": 16}
    assert sizes_of(found) == ["B"]


def test_batches_that_do_not_fit_the_proportion_are_told() -> None:
    def body(loop: Capturing) -> None:
        model, optimizer = built()
        for x, y in loader(1000):
            trained(model, optimizer, x, y)
            for (z,) in DataLoader(TensorDataset(torch.rand(7, 8)), 7):
                model(z.cuda())
            loop.step()

    found = looped(body)
    assert sizes_of(found) == ["B", "7"]
    assert any("batches of 7 rows keep their size" in note for note in found.notes)


def test_a_batch_that_is_copied_early_has_the_size_of_the_batch() -> None:
    def body(loop: Capturing) -> None:
        model, optimizer = built()
        given = iter(loader(1000))
        x, y = (part.cuda(non_blocking=True) for part in next(given))
        while not loop.done:
            following = next(given, None)
            if following is None:
                break
            copied = [part.cuda(non_blocking=True) for part in following]
            trained(model, optimizer, x, y)
            x, y = copied
            loop.step()

    found = looped(body)
    assert found.graph.dims == {"B": 16}
    assert sizes_of(found) == ["B"]
    assert not any("diverge" in note or "plain" in note for note in found.notes)


def test_torch_is_itself_again_where_a_recording_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise OSError("no trace")

    monkeypatch.setattr(build_graph, "read_execution_trace", broken)
    before = DataLoader.__iter__
    loop = capturing()
    with pytest.raises(OSError, match="no trace"), loop:
        for _ in range(2):
            torch.ones(2, device="cuda")
            loop.step()
    assert DataLoader.__iter__ is before
    with pytest.raises(OSError, match="no trace"), capturing() as other:
        torch.ones(2, device="cuda")
        other.step()
    assert DataLoader.__iter__ is before
    assert torch.ones(2).device.type == "cpu"


def test_batches_of_any_iterable() -> None:
    def rows() -> Iterator[dict[str, Any]]:
        while True:
            yield {"x": torch.rand(12, 8), "y": torch.randint(5, (12,)), "names": ["a"] * 12}

    def body(loop: Capturing) -> None:
        model, optimizer = built()
        for batch in loop.batches(rows()):
            assert len(batch["names"]) == len(batch["x"])
            trained(model, optimizer, batch["x"], batch["y"])
            loop.step()

    assert looped(body).graph.dims == {"B": 12}


def test_steps_without_batches_have_plain_sizes() -> None:
    def body(loop: Capturing) -> None:
        model, optimizer = built()
        while not loop.step():
            trained(model, optimizer, torch.rand(4, 8), torch.randint(5, (4,)))

    found = looped(body)
    assert found.graph.dims == {}
    assert any("no DataLoader of torch gave" in note for note in found.notes)


def test_a_loop_that_ends_early_is_told() -> None:
    def body(loop: Capturing) -> None:
        model, optimizer = built()
        for x, y in loader(48):
            trained(model, optimizer, x, y)
            loop.step()

    assert any("ended after 3 steps, and 5 are needed" in note for note in looped(body).notes)


def test_a_loop_without_steps_is_refused() -> None:
    with pytest.raises(IrgraphError, match="no step of the loop was recorded"):
        looped(lambda _: None)


def test_errors_of_the_loop_are_its_own() -> None:
    def body(_: Capturing) -> None:
        torch.ones(3, device="cuda").numpy()

    with pytest.raises((TypeError, RuntimeError)) as caught:
        looped(body)
    assert any("have no values" in note for note in caught.value.__notes__)
    torch.ones(3).numpy()


def test_pinned_memory_of_a_loader() -> None:
    def body(loop: Capturing) -> None:
        model, optimizer = built()
        for x, y in loader(pin_memory=True):
            trained(model, optimizer, x, y)
            loop.step()

    assert looped(body).graph.settings["pinned"] is True


def test_batches_are_cut_or_repeated() -> None:
    batch = (torch.arange(4), {"names": ["a", "b", "c", "d"], "mean": torch.ones(2)}, 3)
    assert length_of(batch) == 4
    short: Any = cut_to(batch, 2)
    assert (short[0].tolist(), short[1]["names"], short[1]["mean"].tolist(), short[2]) == (
        [0, 1],
        ["a", "b"],
        [1.0, 1.0],
        3,
    )
    long: Any = cut_to(batch, 6)
    assert long[0].tolist() == [0, 1, 2, 3, 0, 1]
    assert length_of([3, "x"]) == 0


@pytest.mark.parametrize("in_order", [True, False])
def test_packed_sequences_are_cut_row_by_row(in_order: bool) -> None:
    lengths = [5, 3, 2] if in_order else [2, 5, 3]
    rows = [torch.arange(float(length)) + 10 * length for length in lengths]
    packed = rnn.pack_sequence(rows, enforce_sorted=in_order)
    assert length_of((packed, torch.rand(3))) == 3
    for size in (1, 2, 5):
        cut: Any = cut_to((packed, torch.arange(3)), size)
        expected = [(rows * 2)[i] for i in range(size)]
        if in_order:
            expected.sort(key=len, reverse=True)
        found = rnn.unpack_sequence(cut[0])
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert (cut[0].sorted_indices is None) == in_order
        assert len(cut[1]) == size


def synchronising(found: Capture) -> list[Op]:
    return [op for op in found.graph.walk() if op.name == "sync.device"]


def test_streams_of_the_loop() -> None:
    def body(loop: Capturing) -> None:
        model, optimizer = built()
        for x, y in loader():
            trained(model, optimizer, x, y)
            torch.cuda.synchronize()
            loop.step()

    assert len(synchronising(looped(body))) == 1


class Closing:
    """A loop of Lightning's kind: the optimizer calls the step, and the model moves back."""

    def __init__(self, loop: Capturing) -> None:
        self.model, self.optimizer = built()
        for x, y in loader():
            self.optimizer.step(lambda x=x, y=y: self.closure(x, y))
            loop.step(self.model)
        self.model.cpu()

    def closure(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = functional.cross_entropy(self.model(x.cuda()), y.cuda())
        self.optimizer.zero_grad()
        loss.backward()
        return loss


def test_what_an_optimizer_calls_is_forward_and_backward() -> None:
    graph = looped(Closing).graph
    phases = {op.name: op.phase for op in graph.leaves()}
    assert phases["aten.addmm"] == phases["aten.nll_loss_forward"] == "forward"
    assert phases["aten.mm"] == "backward"
    assert phases["aten._foreach_addcdiv_"] == "optimizer"
