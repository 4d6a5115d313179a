"""Data that numerics are executed on: what does not fit is refused, and named."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from irgraph.diagnostics import IrgraphError
from irgraph.precision.candidates import candidates
from irgraph.precision.data import read_data
from irgraph.precision.measure import PrecisionBench
from irgraph.precision.metrics import loss_increase, losses, normalized_entropy
from irgraph.predict.options import PredictOptions
from irgraph.text import parse

MODEL = """model "m" { format = 2  dims = {B = 32} }

device @gpu0 "a100"
input %x : f32[B, 8] in $x
input %i : i64[2*B] in $i
input %o : i64[B] in $o
param %t "emb.weight" : f32[20, 8] in $t
param %w "top.weight" : f32[CLASSES, 8] in $w

%s, %s1, %s2, %s3 = aten.embedding_bag(%t, %i, %o) : f32[B, 8] in $s, i64[2*B] in $s1, i64[B] in $s2, i64[0] in $s3
%h = aten.add(%x, %s) : f32[B, 8] in $h
%y = aten.linear(%h, %w) : f32[B, CLASSES] in $y
return %y
"""  # noqa: E501

Data = dict[str, Any]


def good(classes: int = 1) -> Data:
    """Return parameters and two batches that fit, with labels."""
    draw = torch.Generator().manual_seed(classes)
    batches = [
        {
            "x": torch.randn(32, 8, generator=draw),
            "i": torch.randint(0, 20, (64,), generator=draw),
            "o": torch.arange(32) * 2,
        }
        for _ in range(2)
    ]
    parameters = {
        "emb.weight": torch.randn(20, 8, generator=draw),
        "top.weight": torch.randn(classes, 8, generator=draw),
    }
    labels = [torch.randint(0, max(classes, 2), (32,), generator=draw) for _ in range(2)]
    return {"parameters": parameters, "batches": batches, "labels": labels}


def bench_of(data: object, folder: Path, classes: int = 1) -> PrecisionBench:
    torch.save(data, folder / "data.pt")
    graph = parse(MODEL.replace("CLASSES", str(classes)))
    held = read_data(str(folder / "data.pt"), graph)
    return PrecisionBench(graph, candidates(graph, ["i8"]), held, PredictOptions(device="a100"))


def batch(name: str, change: Callable[[Any], Any], number: int = 1) -> Callable[[Data], Data]:
    """Return a change of one input of one batch."""

    def changed(data: Data) -> Data:
        batches = [dict(one) for one in data["batches"]]
        batches[number][name] = change(batches[number].get(name))
        return {**data, "batches": batches}

    return changed


def part(name: str, change: Callable[[Any], Any]) -> Callable[[Data], Data]:
    return lambda data: {**data, name: change(data.get(name))}


WRONG = [
    (batch("x", lambda _: None), r"batch 2: error: %x \(NoneType\) cannot become a tensor"),
    (
        batch("x", lambda _: [[1.0, 2.0], [3.0]]),
        r"batch 2: error: %x \(list\) cannot become a tensor",
    ),
    (batch("x", lambda x: x.to_sparse()), "batch 2: error: %x is a sparse tensor"),
    (batch("x", lambda x: x.to(torch.complex64)), "batch 2: error: %x is a complex tensor"),
    (batch("x", lambda x: x.to("meta")), "batch 2: error: %x is a meta tensor"),
    (batch("x", lambda x: torch.nested.nested_tensor([*x])), "batch 2: error: %x is a nested"),
    (batch("i", lambda i: i > 3), "batch 2: error: %i has truth values"),
    (batch("i", lambda i: i + 0.5), "batch 2: error: %i has fractions"),
    (batch("i", lambda i: i + 10), "note: with batch 2 of .*data.pt"),
    (batch("o", lambda o: o + 1, 0), "note: with batch 1 of .*data.pt"),
    (batch("x", lambda x: x[:0]), r"batch 2: error: %x is \[0, 8\]: the batch is empty"),
    (batch("x", lambda x: x[:, :7]), r"batch 2: error: %x is \[32, 7\], not \[32, 8\]"),
    (batch("x", lambda x: x * math.nan), "batch 2: the model predicts nan"),
    (part("labels", lambda x: [x[0], x[1][:9]]), "batch 2: error: 9 labels for 32 predictions"),
    (part("labels", lambda x: [x[0], x[1] * math.nan]), "batch 2: error: labels hold nan"),
    (part("labels", lambda x: [x[0], x[1] + 1]), "batch 2: error: labels hold 2, and a label"),
    (part("labels", lambda x: [x[0], "x"]), r"batch 2: error: labels \(str\) cannot become"),
    (part("labels", torch.stack), "labels are not a list"),
    (part("labels", lambda x: x[:1]), "1 labels for 2 batches"),
    (part("label", lambda _: []), "is called 'label'; did you mean 'labels'"),
    (
        part("parameters", lambda p: {**p, "top.weight": None}),
        r"top.weight \(NoneType\) cannot become",
    ),
    (part("parameters", lambda p: p["top.weight"]), "parameters are not a dictionary"),
    (part("batches", lambda b: b[0]), "not the data of a model"),
]


@pytest.mark.parametrize(("change", "why"), WRONG)
def test_what_does_not_fit_is_refused_with_its_place(
    change: Callable[[Data], Data], why: str, tmp_path: Path
) -> None:
    with pytest.raises(IrgraphError, match=why):
        bench_of(change(good()), tmp_path)


class _Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["IRGRAPH_TEST_CODE"],)


def test_a_file_with_code_runs_none_of_it(tmp_path: Path, monkeypatch: Any) -> None:
    made = tmp_path / "made"
    monkeypatch.setenv("IRGRAPH_TEST_CODE", str(made))
    with pytest.raises(IrgraphError, match="not a file of plain tensors"):
        bench_of({"batches": [_Code()]}, tmp_path)
    assert not made.exists()


def test_numbers_of_classes_are_labels_of_classes(tmp_path: Path) -> None:
    data = good(5)
    bench = bench_of(data, tmp_path, 5)
    errors, logits = bench.errors({0: "i8", 1: "i8"}), bench.reference_logits()[0]
    labels = torch.cat(data["labels"])
    shares = logits.double().softmax(-1)[torch.arange(64), labels]
    base = float(-shares.log().mean())
    now = bench._all_logits(
        bench._execute_rewritten(bench.rewritten_graph({0: "i8", 1: "i8"}), [])
    )[0]
    after = float(-now.double().softmax(-1)[torch.arange(64), labels].log().mean())
    assert errors.rise is not None and errors.rise[0] == pytest.approx((after - base) / base)
    counts = labels.bincount().double() / 64
    expected = base / float(-(counts * counts.log()).sum())
    assert bench.accuracy() == {"normalized_entropy": pytest.approx(expected)}
    data["labels"][0][3] = 5
    with pytest.raises(IrgraphError, match="labels hold 5, and a label is the number of a class"):
        bench_of(data, tmp_path, 5)


def test_two_classes_are_as_one_event() -> None:
    torch.manual_seed(0)
    event, labels = torch.randn(50), torch.randint(0, 2, (50,))
    classes = torch.stack([torch.zeros(50), event], 1)
    torch.testing.assert_close(losses(event, labels), losses(classes, labels))
    assert normalized_entropy(event, labels) == pytest.approx(normalized_entropy(classes, labels))
    first, second = (
        loss_increase(event, event * 1.1, labels),
        loss_increase(classes, classes * 1.1, labels),
    )
    assert first == pytest.approx(second)


def test_what_no_labels_tell_is_nan_and_not_an_error() -> None:
    sure, yes = torch.full((3,), 1e4), torch.ones(3)
    assert all(map(math.isnan, loss_increase(sure, sure, yes))), "a reference without loss"
    share, error = loss_increase(torch.zeros(1), torch.ones(1), torch.ones(1))
    assert share < 0 and math.isnan(error), "one sample has no spread"
