"""ONNX operators that multiply matrices: their ops in torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from irgraph.capture.onnx.build import Site
from irgraph.capture.onnx.model import Model, Node
from irgraph.capture.onnx.operators import Emit
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor, row_major


def matmul(site: Site) -> None:
    """``MatMul``: of two matrices, of batches of them, or of a batch and one matrix."""
    a, b = site.input(0), site.input(1)
    if a.rank == b.rank == 2:
        site.emit("mm", (a, b), (site.out(),))
    elif min(a.rank, b.rank) < 2:
        site.emit("matmul", (a, b), (site.out(),))
    elif b.rank == 2:
        _folded(site, a, b)
    else:
        _batched(site, a, b)


def _folded(site: Site, a: Tensor, b: Tensor) -> None:
    """Multiply all rows of a batch by one matrix, as torch does: as one product."""
    shape = site.shape()
    body: list[Op] = []
    rows = _reshaped(site, a, (math.prod(a.shape[:-1]), a.shape[-1]), body)
    part = site.build.fresh("product", a.dtype, (rows.shape[0], shape[-1]))
    body.append(site.op("mm", (rows, b), (part,)))
    _finish(site, a, b, part, body)


def _batched(site: Site, a: Tensor, b: Tensor) -> None:
    """Multiply batches of matrices that broadcast."""
    shape = site.shape()
    batch = math.prod(shape[:-2])
    body: list[Op] = []
    parts = []
    for x in (a, b):
        whole = _expanded(site, x, (*shape[:-2], *x.shape[-2:]), body)
        parts.append(_reshaped(site, whole, (batch, *x.shape[-2:]), body))
    part = site.build.fresh("product", a.dtype, (batch, *shape[-2:]))
    body.append(site.op("bmm", parts, (part,)))
    _finish(site, a, b, part, body)


def _finish(site: Site, a: Tensor, b: Tensor, part: Tensor, body: list[Op]) -> None:
    """Give the product its shape, and all ops of it one call around them."""
    if part.shape == site.shape():
        site.hand_on(part)
    else:
        made = site.view(part, site.shape())
        body.append(site.op("_unsafe_view", (part,), (made,), {"size": made.shape}))
        part = made
    site.build.ops.append(site.op("matmul", (a, b), (part,), body=body))


def _expanded(site: Site, x: Tensor, shape: tuple[int, ...], body: list[Op]) -> Tensor:
    if x.shape == shape:
        return x
    missing = len(shape) - x.rank
    steps = x.strides or row_major(x.shape)
    strides = (0,) * missing + tuple(
        step if old == new else 0
        for old, new, step in zip(x.shape, shape[missing:], steps, strict=True)
    )
    made = site.build.view(x, "expanded", shape, strides)
    body.append(site.op("expand", (x,), (made,), {"size": shape}))
    return made


def _reshaped(site: Site, x: Tensor, shape: tuple[int, ...], body: list[Op]) -> Tensor:
    """Merge the leading axes: a view where their steps allow it, else a copy."""
    if x.shape == shape:
        return x
    steps = x.strides or row_major(x.shape)
    kept = len(shape) - 1
    lead = x.rank - kept
    mergeable = all(steps[i] == steps[i + 1] * x.shape[i + 1] for i in range(lead - 1))
    if mergeable:
        made = site.build.view(x, "rows", shape, (steps[lead - 1], *steps[lead:]))
        body.append(site.op("view", (x,), (made,), {"size": shape}))
    else:
        made = site.build.fresh("rows", x.dtype, shape)
        body.append(site.op("reshape", (x,), (made,), {"shape": shape}))
    return made


def gemm(site: Site) -> None:
    """``Gemm``: a linear layer where the second matrix is transposed and nothing is scaled."""
    a, b, c = site.input(0), site.input(1), site.optional(2)
    alpha, beta = site.attribute("alpha", 1.0), site.attribute("beta", 1.0)
    second = _transposed(site, b) if site.attribute("transB", 0) else b
    plain = alpha == beta == 1.0 and not site.attribute("transA", 0)
    if site.attribute("transA", 0):
        first = _transposed(site, a)
        site.emit("t", (a,), (first,))
        a = first
    product = _product(site, a, second, c, float(alpha), float(beta))
    if second is b:
        site.build.ops += product
        return
    turned = site.op("t", (b,), (second,))
    if plain:
        given = (a, b) if c is None else (a, b, c)
        body = (turned, *product)
        site.build.ops.append(site.op("linear", given, product[-1].results, body=body))
    else:
        site.build.ops += [turned, *product]


LINEAR = "Linear"
"""Our name for a ``MatMul`` by a weight and the ``Add`` of a bias behind it."""


def with_linear_layers(model: Model) -> list[Node]:
    """Return a model's nodes, each ``MatMul`` by a weight that has its bias as one layer.

    So exporters write linear layers of more than two axes, and of other frameworks. The weight must
    have no other use: torch keeps it turned round.
    """
    users = Counter(name for node in model.nodes for name in node.inputs)
    biased = {
        name: (node, other)
        for node in model.nodes
        if node.op == "Add" and not node.domain and len(node.inputs) == 2
        for name, other in (node.inputs, node.inputs[::-1])
        if other in model.weights
    }
    found: list[Node] = []
    gone: set[str] = set()
    for node in model.nodes:
        added = biased.get(node.outputs[0]) if node.op == "MatMul" and not node.domain else None
        if added is not None and _is_linear(model, node, added[1], users):
            made = replace(node, op=LINEAR, inputs=(*node.inputs, added[1]))
            found.append(replace(made, outputs=added[0].outputs))
            gone.add(added[0].outputs[0])
        elif node.outputs[0] not in gone:
            found.append(node)
    return found


def _is_linear(model: Model, node: Node, bias: str, users: Mapping[str, int]) -> bool:
    rows, weight = (model.types.get(name, ("?", ()))[1] for name in node.inputs)
    return (
        node.inputs[1] in model.weights
        and len(rows) > 1
        and len(weight) == 2
        and model.types.get(bias, ("?", ()))[1] == weight[1:]
        and users[node.inputs[1]] == users[node.outputs[0]] == 1
        and node.outputs[0] not in model.outputs
    )


def linear(site: Site) -> None:
    """Add a linear layer with bias, as torch runs it: rows as one product."""
    x, c = site.input(0), site.input(2)
    kept = site.build.weight(site.node.inputs[1])
    turned = _transposed(site, kept)
    shape = site.shape()
    body = [site.op("t", (kept,), (turned,))]
    rows = _reshaped(site, x, (math.prod(x.shape[:-1]), x.shape[-1]), body)
    if x.rank == 2:
        made = site.out()
        body.append(site.op("addmm", (c, rows, turned), (made,)))
    else:
        part = site.build.fresh("product", x.dtype, (rows.shape[0], shape[-1]))
        body.append(site.op("addmm", (c, rows, turned), (part,)))
        made = site.view(part, shape)
        body.append(site.op("view", (part,), (made,), {"size": made.shape}))
    site.build.ops.append(site.op("linear", (x, kept, c), (made,), body=body))


def _product(
    site: Site, a: Tensor, b: Tensor, c: Tensor | None, alpha: float, beta: float
) -> list[Op]:
    """Return the ops of ``alpha * a @ b + beta * c``."""
    scales: dict[str, Value] = {"beta": beta} if beta != 1.0 else {}
    if c is not None:
        if alpha != 1.0:
            scales["alpha"] = alpha
        return [site.op("addmm", (c, a, b), (site.out(),), scales)]
    if alpha == 1.0:
        return [site.op("mm", (a, b), (site.out(),))]
    part = site.build.fresh("part", a.dtype, site.shape())
    return [
        site.op("mm", (a, b), (part,)),
        site.op("mul", (part,), (site.out(),), {"other": alpha}),
    ]


def _transposed(site: Site, x: Tensor) -> Tensor:
    rows, columns = x.strides or row_major(x.shape)
    return site.build.view(x, f"{x.name}_t", x.shape[::-1], (columns, rows))


PRODUCTS: Mapping[str, Emit] = {"MatMul": matmul, "Gemm": gemm, LINEAR: linear}
"""What adds the ops of each operator."""
