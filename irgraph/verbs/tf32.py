"""``cast`` to tf32 and back: products get another name, and no tensor changes its type."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.schema import resolve
from irgraph.ir.tf32 import PLAIN, TF32, products_at, rename_products
from irgraph.verbs.refusal import RefusedError


def to_tf32(graph: Graph, ops: Sequence[Op]) -> tuple[Graph, tuple[Op, ...]]:
    """Rename products to multiply in tf32; return the new graph and the products in it."""
    products = [product for op in ops for product in products_at(graph, op, TF32)]
    return rename_products(graph, products, TF32)


def from_tf32(graph: Graph, ops: Sequence[Op]) -> tuple[Graph, tuple[Op, ...], list[Op]]:
    """Rename products to multiply in f32; return them, and the ops that have none in tf32."""
    products_by_op = [(op, products_at(graph, op, PLAIN)) for op in ops]
    result, new_products = rename_products(
        graph, [product for _, products in products_by_op for product in products], PLAIN
    )
    return result, new_products, [op for op, products in products_by_op if not products]


def check_tf32(graph: Graph, op: Op) -> None:
    """Refuse an op that is no product of f32 which has a form in tf32."""
    products = products_at(graph, op, TF32)
    if not products:
        reason = f"only products can be cast to tf32: {', '.join(TF32)}"
        if products_at(graph, op, PLAIN):
            reason = "it already multiplies in tf32"
        raise RefusedError(reason, [(op, "")])
    for product in (inner for outer in products for inner in outer.walk() if inner.name in TF32):
        other_dtypes = [t.dtype for t in (*product.inputs, *product.outputs) if t.dtype != "f32"]
        if other_dtypes:
            reason = f"tf32 is a way of multiplying f32, and this op multiplies {other_dtypes[0]}"
            raise RefusedError(reason, [(product, "")])
        form = replace(product, name=TF32[product.name], body=())
        if resolve(form) is None:
            reason = f"{form.name} does not take all of its arguments"
            raise RefusedError(reason, [(product, "")])


def is_in_tf32(graph: Graph, op: Op, dtype: str) -> bool:
    """Return whether an op multiplies in tf32; if so, refuse any type but f32."""
    products = products_at(graph, op, PLAIN)
    if products and dtype != "f32":
        reason = "it rounds its operands to tf32, whatever their type; cast it to f32 first"
        raise RefusedError(reason, [(products[0], "")])
    return bool(products)
