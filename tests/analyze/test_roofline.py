"""Rooflines of traces and models against plain arithmetic from the JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import Any

import pytest

from irgraph.analyze.roofline import works_of
from irgraph.backend import backend
from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.events.tree import build_tree
from irgraph.report.roofline import (
    CallWork,
    kernels_by_operator,
    roofline,
    uncounted_operators,
)
from tests.analyze import raw
from tests.capture.kineto.builder import write

Event = dict[str, Any]
CALLS = ("cuda_runtime", "runtime")
PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::cudnn_convolution"}


def inside(inner: Event, outer: Event) -> bool:
    return bool(
        outer["tid"] == inner["tid"] and outer["ts"] <= inner["ts"] < outer["ts"] + outer["dur"]
    )


def products(events: list[Event]) -> dict[str, tuple[int, float]]:
    """Return calls of products inside of marked steps, and their device time, by name."""
    stretches = raw.marked(events).values()
    calls = [e for e in events if e["name"] in PRODUCTS and e["name"] != "aten::conv2d"]
    calls = [e for e in calls if any(a <= e["ts"] < b for a, b in stretches)]
    launches = {
        e["args"]["correlation"]: e
        for e in events
        if str(e.get("cat", "")).lower() in ("cuda_runtime", "runtime")
        and "correlation" in e["args"]
    }
    by_thread = defaultdict(list)
    for call in calls:
        by_thread[call["tid"]].append(call)
    found: dict[str, tuple[int, float]] = {}
    times: dict[int, Fraction] = defaultdict(Fraction)
    for event in events:
        if str(event.get("cat", "")).lower() not in raw.DEVICE:
            continue
        launch = launches.get(event["args"].get("correlation"))
        around = [c for c in by_thread[launch["tid"]] if inside(launch, c)] if launch else []
        for call in around:
            times[id(call)] += event["dur"]
    for call in calls:
        if id(call) in times:
            count, time = found.get(call["name"], (0, 0.0))
            found[call["name"]] = count + 1, time + float(times[id(call)])
    return found


def flop_of(events: list[Event]) -> Iterator[tuple[str, int]]:
    """Yield the operations of products of matrices, from the shapes in the JSON."""
    for event in events:
        dims = event.get("args", {}).get("Input Dims", [])
        if event["name"] == "aten::mm":
            (m, k), (_, n) = dims[:2]
        elif event["name"] == "aten::addmm":
            (m, k), (_, n) = dims[1:3]
        elif event["name"] == "aten::bmm":
            (b, m, k), (_, _, n) = dims[:2]
            m *= b
        else:
            continue
        yield event["name"], int(2 * m * k * n)


@pytest.mark.data
@pytest.mark.parametrize("name", ["dlrm_8xV100/kineto_rank0", "resnet50_V100/kineto_workers0"])
def test_products_have_the_calls_times_and_flop_of_the_file(name: str, data_dir: Path) -> None:
    path = data_dir / f"traces/{name}.json.gz"
    works, steps = works_of([build_tree(read_kineto(path))])
    rows = {row.name: row for row in roofline(works, "op", steps=steps)}
    events = raw.read(path)
    for op, (calls, time) in products(events).items():
        assert rows[op].calls * steps == pytest.approx(calls)
        assert rows[op].time * steps == pytest.approx(time)
    expected: dict[str, int] = defaultdict(int)
    for op, flop in flop_of(events):
        expected[op] += flop
    assert {op: (rows[op].flop or 0) * steps for op in expected} == pytest.approx(expected)


@pytest.mark.data
def test_convolutions_have_the_flop_of_resnet50(data_dir: Path) -> None:
    """Outputs are those whose gradients the file names; 4.09 GMAC an image [He 2015, Table 1]."""
    path = data_dir / "traces/resnet50_V100/kineto_workers0.json.gz"
    works, steps = works_of([build_tree(read_kineto(path))])
    rows = {row.name: row for row in roofline(works, "op", steps=steps)}
    events = raw.read(path)
    grads = {
        e["args"]["Sequence number"]: e["args"]["Input Dims"][0]
        for e in events
        if e["name"] == "CudnnConvolutionBackward"
    }
    total = 0
    for event in events:
        if event["name"] == "aten::cudnn_convolution":
            made = grads[event["args"]["Sequence number"]]
            total += 2 * made[0] * prod(made[2:]) * prod(event["args"]["Input Dims"][1])
    forward = rows["aten::cudnn_convolution"].flop
    assert forward == pytest.approx(float(total) / steps)
    assert forward == pytest.approx(32 * 2 * 4.09e9, rel=0.01)
    first = 2 * 32 * 112 * 112 * 64 * 3 * 49  # the images have no gradient
    assert rows["aten::cudnn_convolution_backward_weight"].flop == pytest.approx(forward)
    assert rows["aten::cudnn_convolution_backward_input"].flop == pytest.approx(forward - first)


def work(
    op: str, us: float, flop: float | None, nbytes: float | None, dtype: str = "f32"
) -> CallWork:
    return CallWork(op, "", dtype, ((f"{op}_kernel", us),), flop, nbytes)


def test_limits_are_those_of_the_device() -> None:
    """V100-SXM2-16GB: peaks and bandwidth of its sheet."""
    device = backend().device("v100")
    peak, bandwidth = device.peak("f32")[0] * 1e9, device.bandwidth * 1e9
    works = [
        work("mm", 100.0, 0.5 * peak * 100e-6, 0.1 * bandwidth * 100e-6),
        work("relu", 10.0, None, 0.8 * bandwidth * 10e-6),
        work("index", 5.0, None, None),
    ]
    product, relu, index = (row.row("op", 115.0) for row in roofline(works, "op", device))
    assert (product["bound"], relu["bound"], index["bound"]) == ("compute", "memory", "")
    assert product["of_limit"] == product["of_peak"] == pytest.approx(0.5, abs=1e-4)
    assert product["of_bandwidth"] == pytest.approx(0.1, abs=1e-4)
    assert relu["of_limit"] == pytest.approx(0.8, abs=1e-4)
    assert (relu["gflop"], index["mbyte"], index["of_limit"]) == (None, None, None)
    assert uncounted_operators(works) == [{"op": "index", "calls": 1.0, "us": 5.0}]


def test_without_a_device_there_are_rates_and_no_shares() -> None:
    (row,) = roofline([work("mm", 2.0, 4e6, 1e6)], "op")
    found = row.row("op", 2.0)
    assert (found["tflop_s"], found["tb_s"]) == (2.0, 0.5)
    assert (found["of_peak"], found["of_limit"], found["bound"]) == (None, None, "")


def test_operations_go_to_the_kernel_that_multiplies() -> None:
    call = CallWork("mm", "f32[2,2]", "f32", (("sgemm_64", 5.0), ("splitKreduce", 1.0)), 8e6, 1e6)
    both = CallWork("mm", "f32[2,2]", "f32", (("sgemm_64", 2.0), ("sgemm_64", 2.0)), 8e6, 1e6)
    one, two = ({r.name: r for r in roofline([w], "kernel")} for w in (call, both))
    assert (one["sgemm_64"].flop, one["sgemm_64"].nbytes) == (8e6, None)
    assert one["splitKreduce"].flop is None
    assert (two["sgemm_64"].flop, two["sgemm_64"].nbytes) == (8e6, 1e6)
    assert [row.name for row in roofline([call, work("relu", 1.0, None, 1.0)], "shape")] == [
        "mm(f32[2,2])"
    ]


def test_equal_calls_have_a_spread_and_their_kernels() -> None:
    calls = [work("mm", us, 4e6, 1e6) for us in (2.0, 9.0, 4.0)]
    (row,) = roofline(calls, "shape", steps=3)
    found = row.row("shape", 15.0)
    assert [found[key] for key in ("us", "min_us", "median_us", "max_us")] == [5.0, 2.0, 4.0, 9.0]
    both = CallWork("add", "f32[2]", "f32", (("fill", 1.0), ("add", 3.0), ("fill", 2.0)))
    table = kernels_by_operator([both, *calls])
    assert [(r["op"], r["kernel"], r["events"], r["us"]) for r in table] == [
        ("mm", "mm_kernel", 3.0, 15.0),
        ("add", "fill", 2.0, 3.0),
        ("add", "add", 1.0, 3.0),
    ]
    assert [table[1][key] for key in ("min_us", "median_us", "max_us")] == [1.0, 1.5, 2.0]


@pytest.mark.parametrize(
    ("strides", "shown"),
    [
        ([[16, 1], [4, 1]], "f32[8,16] f32[16,4]"),
        ([[16, 1], [1, 16]], "f32[8,16] f32[16,4]T"),
        ([[32, 1], [4, 1]], "f32[8,16]:(32,1) f32[16,4]"),
        ([[16, 1], []], "f32[8,16] f32[16,4]"),
        ([[16, "1"], [1, 16]], "f32[8,16] f32[16,4]"),
        (None, "f32[8,16] f32[16,4]"),
    ],
)
def test_products_show_transposed_operands(
    tmp_path: Path, strides: list[Any] | None, shown: str
) -> None:
    def change(events: list[dict[str, Any]]) -> None:
        for event in events:
            event["name"] = event["name"].replace("aten::linear", "aten::mm")
            if strides is not None and "Input Dims" in event["args"]:
                event["args"]["Input Strides"] = strides

    works, _ = works_of([build_tree(read_kineto(write(tmp_path, change)))])
    assert {w.shape for w in works if w.op == "aten::mm"} == {shown}
