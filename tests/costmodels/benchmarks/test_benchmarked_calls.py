"""What a benchmark calls: the op it is named after, with the case's sizes, and nothing beside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from costmodels.benchmarks.bench import Bench, Case
from costmodels.families import rules, sweeps

Call = tuple[str, list[tuple[int, ...]]]


class Seen(TorchDispatchMode):
    """Notes the ops that are called, and the sizes of their tensors: operands, then results."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(
        self, op: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> object:
        result = op(*args, **(kwargs or {}))
        leaves = torch.utils._pytree.tree_leaves((args, kwargs, result))
        sizes = [tuple(t.shape) for t in leaves if isinstance(t, torch.Tensor)]
        self.calls.append((str(op.overloadpacket).replace("::", "."), sizes))
        return result


def calls(sweep: str, op: str, sizes: Sequence[int], indices: str = "") -> list[Call]:
    """Return what the benchmark of an op calls; views are left out."""
    found = sweeps()[sweep]
    named = dict(zip(found.ranges, sizes, strict=True))
    bench = Bench(torch, "meta", Case(sweep, op, "f32", named, indices))
    call = found.ops[op](bench)
    with Seen() as seen:
        call()
    assert {name for name, _ in seen.calls} <= set(rules()), "an op that no family prices"
    return [(name, sizes) for name, sizes in seen.calls if rules()[name].__name__ != "no_kernels"]


ROWS, VECTOR = (8, 6), (6,)


@pytest.mark.parametrize(
    ("sweep", "op", "sizes", "expected"),
    [
        ("linear", "linear", (1, 8, 6, 5), ("addmm", [(6,), (8, 5), (5, 6), (8, 6)])),
        ("linear", "addmm", (1, 8, 6, 5), ("addmm", [(6,), (8, 5), (5, 6), (8, 6)])),
        ("linear", "input_gradient", (1, 8, 6, 5), ("mm", [(8, 6), (6, 5), (8, 5)])),
        ("linear", "weight_gradient", (1, 8, 6, 5), ("mm", [(6, 8), (8, 5), (6, 5)])),
        ("bmm", "bmm", (3, 8, 6, 5), ("bmm", [(3, 8, 5), (3, 5, 6), (3, 8, 6)])),
        ("bmm", "bmm_transposed", (3, 8, 6, 5), ("bmm", [(3, 8, 5), (3, 5, 6), (3, 8, 6)])),
        ("bmm", "baddbmm", (3, 8, 6, 5), ("baddbmm", [(3, 8, 6), (3, 8, 5), (3, 5, 6), (3, 8, 6)])),
        # sizes: batch, channels, out, side, window
        (
            "conv2d",
            "conv2d",
            (2, 6, 7, 9, 3),
            ("convolution", [(2, 6, 9, 9), (7, 6, 3, 3), (2, 7, 9, 9)]),
        ),
        (
            "conv2d",
            "conv2d_depthwise",
            (2, 6, 7, 9, 3),
            ("convolution", [(2, 6, 9, 9), (6, 1, 3, 3), (2, 6, 9, 9)]),
        ),
        # four groups: channels are rounded up to a multiple
        (
            "conv2d",
            "conv2d_grouped",
            (2, 6, 9, 9, 5),
            ("convolution", [(2, 8, 9, 9), (12, 2, 5, 5), (2, 12, 9, 9)]),
        ),
        (
            "conv2d",
            "conv2d_transposed",
            (2, 6, 7, 9, 3),
            ("convolution", [(2, 6, 9, 9), (6, 7, 3, 3), (2, 7, 9, 9)]),
        ),
        (
            "conv2d",
            "conv2d_backward",
            (2, 6, 7, 9, 3),
            (
                "convolution_backward",
                [(2, 7, 9, 9), (2, 6, 9, 9), (7, 6, 3, 3), (2, 6, 9, 9), (7, 6, 3, 3)],
            ),
        ),
        ("conv1d", "conv1d", (2, 6, 7, 9, 3), ("convolution", [(2, 6, 9), (7, 6, 3), (2, 7, 9)])),
        (
            "conv1d",
            "conv1d_depthwise",
            (2, 6, 7, 9, 3),
            ("convolution", [(2, 6, 9), (6, 1, 3), (2, 6, 9)]),
        ),
        ("concat", "cat", (3, 8, 6), ("cat", [(8, 6)] * 3 + [(8, 18)])),
        ("concat", "split_copy", (3, 8, 6), ("split_copy", [(8, 18)] + [(8, 6)] * 3)),
        ("copy", "cast", (64,), ("_to_copy", [(64,), (64,)])),
        ("copy", "on_device", (64,), ("copy_", [(64,)] * 3)),
        ("fill", "zero_", (64,), ("zero_", [(64,)] * 2)),
        ("fill", "rand", (64,), ("rand_like", [(64,)] * 2)),
        ("elementwise", "add", (8, 6), ("add", [ROWS] * 3)),
        ("elementwise", "mul", (8, 6), ("mul", [ROWS] * 3)),
        ("elementwise", "add_row", (8, 6), ("add", [ROWS, VECTOR, ROWS])),
        ("elementwise", "add_", (8, 6), ("add_", [ROWS] * 3)),
        ("elementwise", "add_scalar", (8, 6), ("add", [ROWS] * 2)),
        ("loss", "mse_loss", (8, 6), ("mse_loss", [ROWS, ROWS, ()])),
        (
            "pool",
            "max_pool",
            (2, 3, 8),
            ("max_pool2d_with_indices", [(2, 3, 8, 8), (2, 3, 4, 4), (2, 3, 4, 4)]),
        ),
        ("pool", "avg_pool", (2, 3, 8), ("avg_pool2d", [(2, 3, 8, 8), (2, 3, 4, 4)])),
        (
            "pool",
            "upsample_bilinear",
            (2, 3, 8),
            ("upsample_bilinear2d", [(2, 3, 8, 8), (2, 3, 16, 16)]),
        ),
        (
            "pool",
            "max_pool_backward",
            (2, 3, 9),
            (
                "max_pool2d_with_indices_backward",
                [(2, 3, 5, 5), (2, 3, 9, 9), (2, 3, 5, 5), (2, 3, 9, 9)],
            ),
        ),
        ("transpose", "transpose_copy", (3, 8, 6), ("clone", [(3, 6, 8)] * 2)),
        ("transpose", "permute_copy", (3, 8, 6), ("clone", [(8, 3, 6)] * 2)),
        # rows, dim, count
        ("scatter", "index_select", (9, 6, 4), ("index_select", [(9, 6), (4,), (4, 6)])),
        ("scatter", "index_add", (9, 6, 4), ("index_add_", [(9, 6), (4,), (4, 6), (9, 6)])),
        ("scatter", "gather", (9, 6, 4), ("gather", [(9, 6), (4, 6), (4, 6)])),
        ("scatter", "scatter_add", (9, 6, 4), ("scatter_add_", [(9, 6), (4, 6), (4, 6), (9, 6)])),
        # pairs of four vectors, each once: six
        ("index", "tril_index", (8, 4), ("index", [(8, 4, 4), (6,), (6,), (8, 6)])),
        (
            "index",
            "tril_index_backward",
            (8, 4),
            ("index_put_", [(8, 4, 4), (6,), (6,), (8, 6), (8, 4, 4)]),
        ),
        ("softmax", "softmax", (8, 6), ("_softmax", [ROWS] * 2)),
        ("softmax", "log_softmax", (8, 6), ("_log_softmax", [ROWS] * 2)),
        ("norm", "layer_norm", (8, 6), ("native_layer_norm", [ROWS, ROWS, (8, 1), (8, 1)])),
        ("reduce", "sum_rows", (8, 6), ("sum", [ROWS, (6,)])),
        ("reduce", "sum_cols", (8, 6), ("sum", [ROWS, (8,)])),
        ("reduce", "sum_all", (8, 6), ("sum", [ROWS, ()])),
        ("reduce", "max_cols", (8, 6), ("max", [ROWS, (8,), (8,)])),
        ("reduce", "cumsum", (8, 6), ("cumsum", [ROWS] * 2)),
        ("sort", "sort", (8, 6), ("sort", [ROWS] * 3)),
        ("sort", "topk", (8, 60), ("topk", [(8, 60), (8, 8), (8, 8)])),
        ("sort", "topk", (8, 6), ("topk", [ROWS] * 3)),
        ("dropout", "dropout", (8, 6), ("native_dropout", [ROWS] * 3)),
    ],
)
def test_a_benchmark_calls_the_op_it_is_named_after(
    sweep: str, op: str, sizes: tuple[int, ...], expected: Call
) -> None:
    name, tensors = expected
    assert calls(sweep, op, sizes) == [(f"aten.{name}", tensors)]


@pytest.mark.parametrize("op", ["to_device", "to_device_pinned", "to_host", "to_host_pinned"])
def test_copies_go_where_their_name_says(op: str) -> None:
    """The near side lies on the host, the far one on the device."""
    bench = Bench(torch, "meta", Case("copy", op, "f32", {"bytes": 64}))
    call = sweeps()["copy"].ops[op](bench)
    cells = dict(zip(call.__code__.co_freevars, call.__closure__, strict=True))  # type: ignore[attr-defined]
    target, source = (cells[name].cell_contents for name in ("target", "source"))
    assert (target.device.type, source.device.type) == (
        ("meta", "cpu") if op.startswith("to_device") else ("cpu", "meta")
    )
    assert target.nbytes == source.nbytes == 64


@pytest.mark.parametrize("tables", [1, 3])
@pytest.mark.parametrize(
    ("op", "name", "mode"),
    [
        ("embedding_bag_sum", "_embedding_bag", 0),
        ("embedding_bag_mean", "_embedding_bag", 1),
        ("embedding_bag_max", "_embedding_bag", 2),
        ("embedding_bag_weighted", "_embedding_bag", 0),
    ],
)
def test_bags_of_every_table_are_looked_up(op: str, name: str, mode: int, tables: int) -> None:
    """Sizes: rows, width, bags, lookups of each."""
    found = calls("embedding", op, (9, 6, 4, 5, tables), "uniform")
    lookups = [shapes for called, shapes in found if called.startswith(f"aten.{name}")]
    assert len(lookups) == tables
    weights = [(20,)] if op.endswith("weighted") else []
    assert lookups[0][: 3 + len(weights)] == [(9, 6), (20,), (4,), *weights]
    assert lookups[0][3 + len(weights)] == (4, 6)


@pytest.mark.parametrize(
    ("op", "name", "shape"),
    [
        ("embedding_backward", "embedding_dense_backward", (9, 6)),
        ("embedding_bag_backward", "_embedding_bag_backward", (9, 6)),
        ("embedding_bag_backward_max", "_embedding_bag_backward", (9, 6)),
    ],
)
def test_gradients_of_tables_are_as_large_as_they(
    op: str, name: str, shape: tuple[int, ...]
) -> None:
    found = calls("embedding", op, (9, 6, 4, 5, 1), "uniform")
    (made,) = [shapes[-1] for called, shapes in found if called == f"aten.{name}"]
    assert made == shape


@pytest.mark.parametrize("op", ["lstm", "gru"])
def test_recurrent_layers_take_steps_of_a_batch(op: str) -> None:
    """Sizes: batch, steps, inputs, hidden."""
    found = sweeps()["recurrent"]
    sizes = dict(zip(found.ranges, (2, 5, 6, 7), strict=True))
    bench = Bench(torch, "cpu", Case("recurrent", op, "f32", sizes))
    data, _ = found.ops[op](bench)()  # type: ignore[misc]
    assert tuple(data.shape) == (5, 2, 7)


@pytest.mark.parametrize("op", ["attention", "attention_causal", "attention_backward"])
def test_attention_is_causal_where_its_name_says(op: str) -> None:
    """Sizes: batch, heads, length, width of a head."""
    found = sweeps()["attention"]
    sizes = dict(zip(found.ranges, (2, 3, 5, 4), strict=True))
    bench = Bench(torch, "cpu", Case("attention", op, "f32", sizes))
    result = found.ops[op](bench)()
    made = result if isinstance(result, tuple) else (result,)
    assert [tuple(t.shape) for t in made] == [(2, 3, 5, 4)] * (3 if "back" in op else 1)


@pytest.mark.parametrize("how", ["", "_foreach", "_fused"])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_optimizers_step_over_so_many_tensors(name: str, how: str) -> None:
    found = sweeps()["optimizer"]
    case = Case("optimizer", name + how, "f32", {"tensors": 3, "elements": 16})
    step = found.ops[case.op](Bench(torch, "cpu", case))
    group = step.__self__.param_groups[0]  # type: ignore[attr-defined]
    assert [tuple(p.shape) for p in group["params"]] == [(16,)] * 3
    assert type(step.__self__).__name__.lower() == name  # type: ignore[attr-defined]
    assert (group["foreach"], group["fused"]) == (how == "_foreach", how == "_fused")
