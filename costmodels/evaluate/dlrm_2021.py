"""The measured DLRM steps of 2021 as ops, by their names in the traces.

Shapes follow from the model configurations (the paper, Table III, and its benchmark script): the
traces of DLRM_default do not record any. Only ops that launch device work are included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, pairwise

from msgspec import Struct

from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor, row_major

CRITEO_ROWS = (
    14885288, 29419, 15123, 7291, 19899, 3, 6463, 1310, 61, 10155909, 618195, 218994, 10, 2208,
    9779, 71, 4, 963, 14, 16967044, 4154705, 13180313, 289595, 10828, 95, 34,
)  # fmt: skip
"""Rows of the 26 tables of the measured DLRM_MLPerf."""


class Reference(Struct, frozen=True):
    """Sizes of a measured model: features of its MLPs, rows of its tables, lookups per bag."""

    bottom: tuple[int, ...]
    top: tuple[int, ...]
    rows: tuple[int, ...]
    lookups: int
    loss: str

    @property
    def width(self) -> int:
        """Elements of an embedding vector."""
        return self.bottom[-1]

    @property
    def pairs(self) -> int:
        """Number of pairs of vectors in the result of the interaction."""
        vectors = len(self.rows) + 1
        return vectors * (vectors - 1) // 2


REFERENCES: Mapping[str, Reference] = {
    "DLRM_default": Reference(
        (512, 512, 64), (1024, 1024, 1024, 1), (1_000_000,) * 8, 100, "mse_loss"
    ),
    "DLRM_MLPerf": Reference(
        (13, 512, 256, 128), (1024, 1024, 512, 256, 1), CRITEO_ROWS, 1, "binary_cross_entropy"
    ),
}
"""The two traced configurations, by name."""


@dataclass
class _GraphBuilder:
    """Creates tensors with fresh names and buffers, and ops over them."""

    numbers: Iterator[int] = field(default_factory=count)

    def tensor(self, *shape: int, dtype: str = "f32", device: str = "gpu0") -> Tensor:
        number = next(self.numbers)
        return Tensor(f"t{number}", dtype, shape, f"b{number}", device=device)

    def to_device(self, *shape: int, dtype: str = "f32") -> Op:
        source = self.tensor(*shape, dtype=dtype, device="cpu")
        return Op("aten.to", (source,), (self.tensor(*shape, dtype=dtype),))

    def to_host(self, *shape: int) -> Op:
        return Op("aten.to", (self.tensor(*shape),), (self.tensor(*shape, device="cpu"),))

    def call(self, name: str, *operands: Value, out: tuple[int, ...]) -> Op:
        return Op(f"aten.{name}", operands, (self.tensor(*out),))

    def in_place(self, name: str, *shape: int, others: int = 1) -> Op:
        target = self.tensor(*shape)
        sources = tuple(self.tensor(*shape) for _ in range(others))
        return Op(f"aten.{name}", (target, *sources), written=frozenset({target.name}))


LabelledOps = Iterator[tuple[str, tuple[Op, ...]]]


def reference_ops(model: str, batch: int) -> LabelledOps:
    """Yield the traced op names of a step in order, each with the ops whose kernels it launches."""
    sizes, builder = REFERENCES[model], _GraphBuilder()
    top = (sizes.width + sizes.pairs, *sizes.top)
    yield from _inputs(sizes, batch, builder)
    yield from _mlp_forward(sizes.bottom, batch, builder, last_relu=True)
    yield "LookupFunction", (_lookup(sizes, batch, builder),)
    yield from _interaction(sizes, batch, builder)
    yield from _mlp_forward(top, batch, builder, last_relu=False)
    yield from _loss(sizes, batch, builder)
    parameters = [*_parameters(sizes.bottom), *_parameters(top)]
    zero_ops = (builder.in_place("zero_", *shape, others=0) for shape in parameters)
    yield "Optimizer.zero_grad#SGD.zero_grad", tuple(zero_ops)
    yield from _loss_backward(sizes, batch, builder)
    yield from _mlp_backward(top, batch, builder, first_gradient=True)
    yield from _interaction_backward(sizes, batch, builder)
    yield "LookupFunctionBackward", (_lookup_update(sizes, batch, builder),)
    yield from _mlp_backward(sizes.bottom, batch, builder, first_gradient=False, relu_first=True)
    updates = (builder.in_place("add_", *shape) for shape in parameters)
    yield "Optimizer.step#SGD.step", tuple(updates)


def _parameters(sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for inputs, outputs in pairwise(sizes):
        yield (outputs, inputs)
        yield (outputs,)


def _inputs(sizes: Reference, batch: int, builder: _GraphBuilder) -> LabelledOps:
    bags = batch * len(sizes.rows)
    yield "aten::to", (builder.to_device(bags * sizes.lookups, dtype="i32"),)
    yield "aten::to", (builder.to_device(bags + 1, dtype="i32"),)
    yield "aten::to", (builder.to_device(batch, sizes.bottom[0]),)


def _mlp_forward(
    sizes: tuple[int, ...], batch: int, builder: _GraphBuilder, last_relu: bool
) -> LabelledOps:
    for inputs, outputs in pairwise(sizes):
        data, weight, bias = builder.tensor(batch, inputs), builder.tensor(outputs, inputs), outputs
        yield (
            "aten::linear",
            (builder.call("linear", data, weight, builder.tensor(bias), out=(batch, outputs)),),
        )
        if outputs != sizes[-1] or last_relu:
            yield "aten::relu", (_unary("relu", (batch, outputs), builder),)


def _unary(name: str, shape: tuple[int, ...], builder: _GraphBuilder, operands: int = 1) -> Op:
    return builder.call(name, *(builder.tensor(*shape) for _ in range(operands)), out=shape)


def _lists(sizes: Reference, batch: int, builder: _GraphBuilder) -> tuple[Value, ...]:
    weights = tuple(builder.tensor(rows, sizes.width) for rows in sizes.rows)
    indices = tuple(builder.tensor(batch * sizes.lookups, dtype="i32") for _ in sizes.rows)
    offsets = tuple(builder.tensor(batch, dtype="i32") for _ in sizes.rows)
    return weights, indices, offsets


def _lookup(sizes: Reference, batch: int, builder: _GraphBuilder) -> Op:
    result = tuple(builder.tensor(batch, sizes.width) for _ in sizes.rows)
    return Op("irgraph.batched_embedding", _lists(sizes, batch, builder), (result,))


def _lookup_update(sizes: Reference, batch: int, builder: _GraphBuilder) -> Op:
    weights, indices, offsets = _lists(sizes, batch, builder)
    gradients = tuple(builder.tensor(batch, sizes.width) for _ in sizes.rows)
    operands = (weights, gradients, indices, offsets)
    return Op("irgraph.batched_embedding_sgd", operands, (), {"alpha": -0.1})


def _interaction(sizes: Reference, batch: int, builder: _GraphBuilder) -> LabelledOps:
    vectors, width = len(sizes.rows) + 1, sizes.width
    parts = tuple(builder.tensor(batch, width) for _ in range(vectors))
    concatenated = builder.call("cat", parts, out=(batch, vectors * width))
    yield "aten::cat", (concatenated,)
    data = builder.tensor(batch, vectors, width)
    yield (
        "aten::bmm",
        (builder.call("bmm", data, _transposed(data), out=(batch, vectors, vectors)),),
    )
    index = (
        None,
        builder.tensor(sizes.pairs, dtype="i64"),
        builder.tensor(sizes.pairs, dtype="i64"),
    )
    for _ in range(2):
        yield "aten::to", (builder.to_device(sizes.pairs, dtype="i64"),)
    products = builder.tensor(batch, vectors, vectors)
    yield "aten::index", (builder.call("index", products, index, out=(batch, sizes.pairs)),)
    operands = (builder.tensor(batch, width), builder.tensor(batch, sizes.pairs))
    yield "aten::cat", (builder.call("cat", operands, out=(batch, width + sizes.pairs)),)


def _transposed(tensor: Tensor) -> Tensor:
    """Return the view of a tensor with its last two axes exchanged."""
    shape = (*tensor.shape[:-2], tensor.shape[-1], tensor.shape[-2])
    steps = row_major(tensor.shape)
    strides = (*steps[:-2], steps[-1], steps[-2])
    return Tensor(f"{tensor.name}t", tensor.dtype, shape, tensor.buffer, strides)


def _loss(sizes: Reference, batch: int, builder: _GraphBuilder) -> LabelledOps:
    yield "aten::sigmoid", (_unary("sigmoid", (batch, 1), builder),)
    yield "aten::to", (builder.to_device(batch, 1),)
    operands = (builder.tensor(batch, 1), builder.tensor(batch, 1))
    yield f"aten::{sizes.loss}", (builder.call(sizes.loss, *operands, out=()),)
    yield "aten::to", (builder.to_host(),)


def _loss_backward(sizes: Reference, batch: int, builder: _GraphBuilder) -> LabelledOps:
    yield "aten::ones_like", (builder.call("ones_like", builder.tensor(), out=()),)
    node = "MseLossBackward" if sizes.loss == "mse_loss" else "BinaryCrossEntropyBackward"
    operands = (builder.tensor(), builder.tensor(batch, 1), builder.tensor(batch, 1))
    yield node, (builder.call(f"{sizes.loss}_backward", *operands, out=(batch, 1)),)
    yield "SigmoidBackward", (_unary("sigmoid_backward", (batch, 1), builder, operands=2),)


def _mlp_backward(
    sizes: tuple[int, ...],
    batch: int,
    builder: _GraphBuilder,
    first_gradient: bool,
    relu_first: bool = False,
) -> LabelledOps:
    """Yield the layers in reverse order; ``first_gradient``: also the gradient of the input."""
    layers = list(pairwise(sizes))
    for index, (inputs, outputs) in reversed(list(enumerate(layers))):
        if index < len(layers) - 1 or relu_first:
            relu = _unary("threshold_backward", (batch, outputs), builder, operands=2)
            yield "ReluBackward0", (relu,)
        gradient, data = builder.tensor(batch, outputs), builder.tensor(batch, inputs)
        weight = builder.call("mm", _transposed(gradient), data, out=(outputs, inputs))
        data_gradient = builder.call(
            "mm", gradient, builder.tensor(outputs, inputs), out=(batch, inputs)
        )
        yield "AddmmBackward", (data_gradient, weight) if index or first_gradient else (weight,)
        yield "aten::sum", (builder.call("sum", gradient, out=(1, outputs)),)
        yield "torch::autograd::AccumulateGrad", (builder.in_place("add_", outputs),)
        yield "torch::autograd::AccumulateGrad", (builder.in_place("add_", outputs, inputs),)


def _interaction_backward(sizes: Reference, batch: int, builder: _GraphBuilder) -> LabelledOps:
    vectors, width, pairs = len(sizes.rows) + 1, sizes.width, sizes.pairs
    square = (batch, vectors, vectors)
    target = builder.tensor(*square)
    index = (None, builder.tensor(pairs, dtype="i64"), builder.tensor(pairs, dtype="i64"))
    index_put = Op(
        "aten._index_put_impl_",
        (target, index, builder.tensor(batch, pairs)),
        attributes={"accumulate": True},
        written=frozenset({target.name}),
    )
    yield "IndexBackward", (builder.call("new_zeros", out=square), index_put)
    yield "SliceBackward", (builder.call("slice_backward", builder.tensor(*square), out=square),)
    gradient, data = builder.tensor(*square), builder.tensor(batch, vectors, width)
    first = builder.call("bmm", _transposed(data), gradient, out=(batch, width, vectors))
    second = builder.call("bmm", gradient, data, out=(batch, vectors, width))
    yield "BmmBackward0", (first, second)
    transposed = _transposed(builder.tensor(batch, width, vectors))
    total = builder.call("add", builder.tensor(batch, vectors, width), transposed, out=data.shape)
    yield "aten::add", (total,)
    part = Tensor("part", "f32", (batch, width), "whole", (vectors * width, 1))
    yield (
        "aten::add",
        (builder.call("add", builder.tensor(batch, width), part, out=(batch, width)),),
    )
