"""The ops to measure, as functions of sizes that return something to call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from costmodels.measure.sweep import Case

Torch = Any
Call = Callable[[], object]
Maker = Callable[["Bench"], Call]

DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64"}
"""torch's names of data types."""


class Bench:
    """Makes tensors of a case on a device."""

    def __init__(self, torch: Torch, device: str, case: Case, seed: int = 0) -> None:
        self.torch = torch
        self.device = device
        self.case = case
        self.dtype = getattr(torch, DTYPES[case.dtype])
        self.generator = torch.Generator(device="cpu").manual_seed(seed)

    def __getitem__(self, size: str) -> int:
        """Return one of the case's sizes."""
        return self.case.sizes[size]

    def values(self, *shape: int) -> Any:  # noqa: ANN401  (a tensor)
        """Return a tensor of random numbers of the case's data type."""
        return self.torch.rand(*shape, device=self.device).to(self.dtype)

    def rows(self, most: int, count: int) -> Any:  # noqa: ANN401  (a tensor)
        """Return so many row numbers below ``most``, drawn as the case says."""
        even = self.torch.rand(count, generator=self.generator, dtype=self.torch.float64)
        if self.case.indices == "zipf":
            spread = most ** (1 - 1.05)
            even = ((1 - even * (1 - spread)) ** (1 / (1 - 1.05)) - 1) / most
        return (even * most).long().clamp_(0, most - 1).to(self.device)


def _product(bench: Bench) -> Call:
    torch = bench.torch
    first, second = bench.values(bench["m"], bench["k"]), bench.values(bench["n"], bench["k"])
    bias = bench.values(bench["n"])
    if bench.case.op == "linear":
        return lambda: torch.nn.functional.linear(first, second, bias)
    return lambda: torch.addmm(bias, first, second.t())


def _batched(bench: Bench) -> Call:
    torch = bench.torch
    first = bench.values(bench["batch"], bench["m"], bench["k"])
    second = bench.values(bench["batch"], bench["k"], bench["n"])
    if bench.case.op == "bmm":
        return lambda: torch.bmm(first, second)
    added = bench.values(bench["batch"], bench["m"], bench["n"])
    return lambda: torch.baddbmm(added, first, second)


def _pointwise(bench: Bench) -> Call:
    torch, op = bench.torch, bench.case.op
    one = bench.values(bench["rows"], bench["cols"])
    two = bench.values(bench["cols"]) if op == "add_row" else bench.values(*one.shape)
    unary = {
        "relu": torch.relu,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "gelu": torch.nn.functional.gelu,
        "softmax": lambda x: torch.softmax(x, -1),
        "log_softmax": lambda x: torch.log_softmax(x, -1),
        "layer_norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
        "batch_norm": lambda x: torch.nn.functional.batch_norm(x, None, None, training=True),
        "dropout": lambda x: torch.nn.functional.dropout(x, 0.5),
        "sum_rows": lambda x: x.sum(0),
        "sum_cols": lambda x: x.sum(1),
        "sum_all": lambda x: x.sum(),
        "add_scalar": lambda x: x + 1.5,
    }
    if op in unary:
        return lambda: unary[op](one)
    return lambda: one * two if op == "mul" else one + two


def _transposed(bench: Bench) -> Call:
    given = bench.values(bench["batch"], bench["rows"], bench["cols"])
    return lambda: given.transpose(1, 2).contiguous()


def _concat(bench: Bench) -> Call:
    torch = bench.torch
    parts = [bench.values(bench["rows"], bench["cols"]) for _ in range(bench["parts"])]
    whole = torch.cat(parts, 1)
    if bench.case.op == "cat":
        return lambda: torch.cat(parts, 1)
    return lambda: torch.split_copy(whole, bench["cols"], 1)


def _tril(bench: Bench) -> Call:
    torch, side = bench.torch, bench["side"]
    given = bench.values(bench["batch"], side, side)
    rows, columns = torch.tril_indices(side, side, -1, device=bench.device)
    if bench.case.op == "tril_index":
        return lambda: given[:, rows, columns]
    gradient = bench.values(bench["batch"], len(rows))
    places = (None, rows, columns)
    return lambda: torch.ops.aten.index_put(given, list(places), gradient, True)


def _bag(bench: Bench) -> Call:
    torch = bench.torch
    count = bench["batch"] * bench["lookups"]
    table = bench.values(bench["rows"], bench["dim"])
    indices = bench.rows(bench["rows"], count)
    offsets = torch.arange(0, count, bench["lookups"], device=bench.device)
    lookup = torch.nn.functional.embedding_bag
    mode = bench.case.op.removeprefix("embedding_bag_")
    if mode != "backward":
        return lambda: lookup(indices, table, offsets, mode=mode)
    table.requires_grad_()
    result = lookup(indices, table, offsets, mode="sum", sparse=True)
    gradient = torch.ones_like(result)
    return lambda: torch.autograd.grad(result, table, gradient, retain_graph=True)


def _conv(bench: Bench) -> Call:
    torch, window = bench.torch, bench["window"]
    alone = bench.case.op == "conv2d_depthwise"
    channels, out = bench["channels"], bench["channels"] if alone else bench["out"]
    image = bench.values(bench["batch"], channels, bench["side"], bench["side"])
    weight = bench.values(out, 1 if alone else channels, window, window)
    groups = channels if alone else 1
    return lambda: torch.conv2d(image, weight, None, 1, window // 2, 1, groups)


def _optimizer(bench: Bench) -> Call:
    torch = bench.torch
    weights = [bench.values(bench["elements"]) for _ in range(bench["tensors"])]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    kind = torch.optim.SGD if bench.case.op == "sgd_foreach" else torch.optim.Adam
    step: Call = kind(weights, lr=1e-3, foreach=True).step
    return step


def _copy(bench: Bench) -> Call:
    torch = bench.torch
    far = torch.zeros(bench["bytes"], dtype=torch.uint8, device=bench.device)
    near = torch.zeros(bench["bytes"], dtype=torch.uint8)
    pairs = {"to_device": (far, near), "to_host": (near, far), "on_device": (far.clone(), far)}
    target, source = pairs[bench.case.op]
    return lambda: target.copy_(source)


OPS: Mapping[str, Maker] = {
    **dict.fromkeys(("linear", "addmm"), _product),
    **dict.fromkeys(("bmm", "baddbmm"), _batched),
    **dict.fromkeys(
        ("add", "mul", "add_scalar", "relu", "sigmoid", "tanh", "gelu", "add_row", "softmax",
         "log_softmax", "layer_norm", "batch_norm", "dropout", "sum_rows", "sum_cols", "sum_all"),
        _pointwise,
    ),
    "transpose_copy": _transposed,
    **dict.fromkeys(("cat", "split_copy"), _concat),
    **dict.fromkeys(("tril_index", "tril_index_backward"), _tril),
    **dict.fromkeys(
        ("embedding_bag_sum", "embedding_bag_mean", "embedding_bag_max", "embedding_bag_backward"),
        _bag,
    ),
    **dict.fromkeys(("conv2d", "conv2d_depthwise"), _conv),
    **dict.fromkeys(("sgd_foreach", "adam_foreach"), _optimizer),
    **dict.fromkeys(("to_device", "to_host", "on_device"), _copy),
}  # fmt: skip
"""What makes each op's call, by the op's name."""
