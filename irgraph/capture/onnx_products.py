"""ONNX operators that multiply matrices: their ops in torch."""

from __future__ import annotations

import math
from collections.abc import Mapping

from irgraph.capture.onnx_build import Site
from irgraph.capture.onnx_ops import Emit
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


PRODUCTS: Mapping[str, Emit] = {"MatMul": matmul, "Gemm": gemm}
"""What adds the ops of each operator."""
