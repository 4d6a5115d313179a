"""Values on meta that follow from the host's, and calls that meta alone cannot run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from costmodels.devices.library import load_device
from costmodels.pricing.price import price
from irgraph.capture.common.result import Capture
from irgraph.capture.live import capture
from irgraph.execute import execute
from irgraph.text import IrgraphError

WORDS = torch.tensor([[3, 1, 0], [2, 0, 0]])
WEIGHT = torch.rand(4, 2, device="meta")


def names(step: Callable[[], Any]) -> list[str]:
    return [op.name for op in taken(step).graph.leaves()]


def taken(step: Callable[[], Any]) -> Capture:
    captured = capture(step)
    assert not any("an unknown value" in note for note in captured.notes)
    return captured


def test_a_check_of_what_the_host_gave_sees_its_values() -> None:
    def step() -> Any:
        words = WORDS.to("meta")
        if words.max() >= 4 or (words != 0).all():
            raise ValueError("no such word")
        return WEIGHT[words]

    assert "aten.index" in names(step)


def test_a_branch_on_a_mask_is_the_one_that_the_program_takes() -> None:
    def step() -> Any:
        mask = (WORDS.to("meta") != 0)[:, None, :]
        return WEIGHT.sum() if mask.all() else WEIGHT.exp()

    assert "aten.exp" in names(step)


def test_views_share_what_is_known_and_writes_through_them_are_seen() -> None:
    def step() -> Any:
        counts = torch.zeros(3, dtype=torch.int64, device="meta")
        counts[1:].add_(WORDS.to("meta")[0, 1:])
        return WEIGHT * counts[1].item()

    (scale,) = (op for op in taken(step).graph.leaves() if op.name == "aten.mul")
    assert scale.attributes["other"] == 1


def test_what_an_unknown_value_is_written_to_is_unknown() -> None:
    def step() -> Any:
        counts = torch.zeros(4, device="meta")
        counts[1:].copy_(WEIGHT[1:, 0])
        return counts.sum().item()

    (note,) = capture(step).notes
    assert note.endswith("taken as 1 (sum of an unknown value)")


def test_random_numbers_are_unknown() -> None:
    captured = capture(lambda: torch.rand(2, device="meta")[0].item())
    (note,) = captured.notes
    assert note.endswith("taken as 1 (select of an unknown value)")


def test_sizes_that_depend_on_known_values_are_found() -> None:
    captured = taken(lambda: WEIGHT[:3, 0].expand(2, 3)[WORDS.to("meta") != 0])
    assert [op.outputs[0].shape for op in captured.graph.leaves() if op.outputs][-1] == (3,)


def test_sizes_that_depend_on_unknown_values_are_refused() -> None:
    with pytest.raises(IrgraphError, match="--device cpu"):
        capture(lambda: WEIGHT.nonzero())


def test_a_loss_by_lengths_is_captured() -> None:
    scores = torch.rand(6, 2, 4, device="meta", requires_grad=True)

    def step() -> None:
        words, lengths = WORDS[:, :1].to("meta"), torch.ones(2, dtype=torch.int64).to("meta")
        frames = torch.full((2,), 6).to("meta")
        loss = torch.nn.functional.ctc_loss(scores.log_softmax(2), words, frames, lengths)
        loss.backward()

    assert {"aten._ctc_loss", "aten._ctc_loss_backward"} <= set(names(step))


def test_grouped_products_in_single_precision_are_captured() -> None:
    rows, weights = torch.rand(6, 8, device="meta"), torch.rand(2, 8, 8, device="meta")
    ends = torch.tensor([2, 6], dtype=torch.int32)
    graph = taken(lambda: torch._grouped_mm(rows, weights, offs=ends.to("meta"))).graph
    assert graph.returned is not None
    assert (graph.returned[0].dtype, graph.returned[0].shape) == ("f32", (6, 8))


def test_dropout_that_does_nothing_costs_nothing() -> None:
    layer = torch.nn.Dropout(0.0)
    priced = price(capture(lambda: layer(WEIGHT.exp())).graph, load_device("v100"))
    assert priced.unknown == ()


def test_known_values_do_not_show_in_the_step() -> None:
    captured = taken(lambda: (WORDS.to("meta") + 1).sum())
    left = execute(captured.graph, {captured.graph.tensors[0].tensor.name: WORDS})
    assert captured.graph.returned is not None
    assert left[captured.graph.returned[0].name] == 12
    assert all(op.name != "aten.set_" for op in captured.graph.walk())


def test_rows_of_sparse_gradients_are_counted() -> None:
    table = torch.nn.Embedding(9, 4, sparse=True, device="meta")
    optimizer = torch.optim.SparseAdam(list(table.parameters()))

    def step() -> None:
        optimizer.zero_grad()
        table(WORDS.to("meta")).sum().backward()
        optimizer.step()

    ops = list(taken(step).graph.leaves())
    (rows,) = (op.outputs[0].name for op in ops if op.name == "aten._coalesce")
    sizes = [
        op.outputs[0].shape for op in ops if op.name == "aten._values" and op.inputs[0].name == rows
    ]
    assert sizes == [(4, 4)]
