"""The ops to measure, as functions of sizes that return something to call."""

from __future__ import annotations

from collections.abc import Mapping

from costmodels.measure.bench import Bench
from costmodels.measure.calls import Call, Function, Maker, gradient
from costmodels.measure.layers import LAYERS
from costmodels.measure.lookups import LOOKUPS


def _product(bench: Bench) -> Call:
    torch, op = bench.torch, bench.case.op
    first, second = bench.values(bench["m"], bench["k"]), bench.values(bench["n"], bench["k"])
    if op.endswith("_gradient"):
        given = bench.values(bench["m"], bench["n"])
        if op == "input_gradient":
            return lambda: torch.mm(given, second)
        return lambda: torch.mm(given.t(), first)
    bias = bench.values(bench["n"])
    if op == "linear":
        return lambda: torch.nn.functional.linear(first, second, bias)
    return lambda: torch.addmm(bias, first, second.t())


def _batched(bench: Bench) -> Call:
    torch, op = bench.torch, bench.case.op
    first = bench.values(bench["batch"], bench["m"], bench["k"])
    if op == "bmm_transposed":
        crossed = bench.values(bench["batch"], bench["n"], bench["k"])
        return lambda: torch.bmm(first, crossed.transpose(1, 2))
    second = bench.values(bench["batch"], bench["k"], bench["n"])
    if op == "bmm":
        return lambda: torch.bmm(first, second)
    added = bench.values(bench["batch"], bench["m"], bench["n"])
    return lambda: torch.baddbmm(added, first, second)


UNARY: Mapping[str, Function] = {
    "relu": lambda t, x: t.relu(x),
    "sigmoid": lambda t, x: t.sigmoid(x),
    "tanh": lambda t, x: t.tanh(x),
    "gelu": lambda t, x: t.nn.functional.gelu(x),
    "silu": lambda t, x: t.nn.functional.silu(x),
    "softmax": lambda t, x: t.softmax(x, -1),
    "log_softmax": lambda t, x: t.log_softmax(x, -1),
    "layer_norm": lambda t, x: t.nn.functional.layer_norm(x, x.shape[-1:]),
    "batch_norm": lambda t, x: t.nn.functional.batch_norm(x, None, None, training=True),
    "group_norm": lambda t, x: t.nn.functional.group_norm(x.unsqueeze(0), 1),
    "dropout": lambda t, x: t.native_dropout(x, 0.5, True)[0],
    "sum_rows": lambda t, x: x.sum(0),
    "sum_cols": lambda t, x: x.sum(1),
    "sum_all": lambda t, x: x.sum(),
    "max_cols": lambda t, x: x.max(1),
    "cumsum": lambda t, x: x.cumsum(1),
    "add_scalar": lambda t, x: x + 1.5,
    "sort": lambda t, x: x.sort(-1),
    "topk": lambda t, x: x.topk(min(8, x.shape[-1]), -1),
}
"""Ops of one matrix; a name that ends in ``_backward`` is the gradient of one of them."""

GRADIENTS = (
    "relu", "gelu", "tanh", "sigmoid", "softmax", "log_softmax", "layer_norm", "batch_norm",
    "group_norm", "dropout",
)  # fmt: skip


def _pointwise(bench: Bench) -> Call:
    torch, op = bench.torch, bench.case.op
    shape = bench["rows"], bench["cols"]
    if op.endswith("_backward"):
        source = bench.values(*shape, grad=True)
        return gradient(bench, UNARY[op.removesuffix("_backward")](torch, source), source)
    one = bench.values(*shape)
    if op in UNARY:
        return lambda: UNARY[op](torch, one)
    two = bench.values(bench["cols"]) if op == "add_row" else bench.values(*shape)
    if op == "add_":
        return lambda: one.add_(two, alpha=-0.1)
    return lambda: one * two if op == "mul" else one + two


def _loss(bench: Bench) -> Call:
    functions, op = bench.torch.nn.functional, bench.case.op
    one = bench.values(bench["rows"], bench["cols"])
    if op == "cross_entropy":
        classes = bench.rows(bench["cols"], bench["rows"])
        return lambda: functions.cross_entropy(one, classes)
    two = bench.values(bench["rows"], bench["cols"])
    if op == "mse_loss":
        return lambda: functions.mse_loss(one, two)
    return lambda: functions.binary_cross_entropy_with_logits(one, two)


def _reordered(bench: Bench) -> Call:
    given = bench.values(bench["batch"], bench["rows"], bench["cols"])
    if bench.case.op == "transpose_copy":
        return lambda: given.transpose(1, 2).contiguous()
    return lambda: given.permute(1, 0, 2).contiguous()


def _concat(bench: Bench) -> Call:
    torch = bench.torch
    parts = [bench.values(bench["rows"], bench["cols"]) for _ in range(bench["parts"])]
    if bench.case.op == "cat":
        return lambda: torch.cat(parts, 1)
    whole = torch.cat(parts, 1)
    return lambda: torch.split_copy(whole, bench["cols"], 1)


def _fill(bench: Bench) -> Call:
    given = bench.values(bench["elements"])
    return given.zero_ if bench.case.op == "zero_" else lambda: bench.torch.rand_like(given)


def _optimizer(bench: Bench) -> Call:
    torch = bench.torch
    weights = [bench.values(bench["elements"]) for _ in range(bench["tensors"])]
    for weight in weights:
        bench.spend(3 * weight.nbytes)
        weight.grad = torch.ones_like(weight)
    name, _, how = bench.case.op.partition("_")
    given = {"foreach": how == "foreach", "fused": how == "fused"}
    if name == "sgd":
        return torch.optim.SGD(weights, lr=1e-3, momentum=0.9, **given).step  # type: ignore[no-any-return]
    return torch.optim.Adam(weights, lr=1e-3, **given).step  # type: ignore[no-any-return]


def _copy(bench: Bench) -> Call:
    torch, op, nbytes = bench.torch, bench.case.op, bench["bytes"]
    bench.spend(3 * nbytes)
    far = torch.zeros(nbytes, dtype=torch.uint8, device=bench.device)
    if op == "cast":
        return lambda: far.to(torch.float16)
    if op == "on_device":
        other = torch.zeros_like(far)
        return lambda: far.copy_(other)
    pinned = op.endswith("_pinned") and bench.device.startswith("cuda")
    near = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=pinned)
    target, source = (far, near) if op.startswith("to_device") else (near, far)
    return lambda: target.copy_(source)


def _named(maker: Maker, *names: str) -> dict[str, Maker]:
    return dict.fromkeys(names, maker)


OPS: Mapping[str, Maker] = {
    **_named(_product, "linear", "addmm", "input_gradient", "weight_gradient"),
    **_named(_batched, "bmm", "baddbmm", "bmm_transposed"),
    **_named(_pointwise, *UNARY, *(f"{n}_backward" for n in GRADIENTS), "add", "add_", "mul",
             "add_row"),
    **_named(_loss, "cross_entropy", "mse_loss", "bce"),
    **_named(_reordered, "transpose_copy", "permute_copy"),
    **_named(_concat, "cat", "split_copy"),
    **_named(_fill, "zero_", "rand"),
    **_named(_optimizer, "sgd", "sgd_foreach", "sgd_fused", "adam", "adam_foreach", "adam_fused"),
    **_named(_copy, "to_device", "to_device_pinned", "to_host", "to_host_pinned", "on_device",
             "cast"),
    **LOOKUPS,
    **LAYERS,
}  # fmt: skip
"""What makes each op's call, by the op's name."""
