"""Time reading and printing of model.ir: ``python tests/benchmarks/bench_text.py``.

The model has the shape of a captured transformer step (GPT-2 class: 27,000 ops); larger ones show
how both scale.
"""

from __future__ import annotations

import sys
import time

from irgraph.ir.dim import make
from irgraph.ir.graph import Declared, Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.text import parse, print_graph


def block(i: int, x: Tensor, w: Tensor, rows: int) -> tuple[list[Op], Tensor]:
    """Return a linear layer with activation, as captured: nine ops."""
    t = Tensor(f"t{i}", "f32", w.shape, w.buffer, (1, 1024))
    h = Tensor(f"h{i}", "f32", (rows, 1024), f"bh{i}")
    r = Tensor(f"r{i}", "f32", (rows, 1024), f"br{i}")
    parts = [
        Tensor(f"v{i}_{k}", "f32", (rows, 256), h.buffer, (1024, 1), 1024 * k) for k in range(4)
    ]
    linear = Op(
        "aten.linear",
        (x, w),
        (h,),
        module=f"h.{i}.mlp",
        origin=f"et.json#{i}",
        body=(
            Op("aten.t", (w,), (t,), module=f"h.{i}.mlp"),
            Op("aten.mm", (x, t), (h,), module=f"h.{i}.mlp"),
        ),
    )
    ops = [linear, Op("aten.gelu", (h,), (r,), origin=f"et.json#{i + 1}")]
    ops += [
        Op("aten.slice", (h,), (p,), {"dim": 1, "start": 256 * k, "end": 256 * (k + 1)})
        for k, p in enumerate(parts)
    ]
    ops.append(Op("aten.add_", (r, h), (), {"alpha": -0.1}, frozenset({r.name}), phase="optimizer"))
    return ops, r


def model(count: int) -> Graph:
    """Return a graph of about ``count`` ops."""
    rows = make([(("B",), 1024)], {"B": 4})
    x = Tensor("x", "f32", (rows, 1024), "bx")
    w = Tensor("w", "f32", (1024, 1024), "bw")
    declared = (Declared("input", x), Declared("param", w, "w"))
    ops: list[Op] = []
    for i in range(count // 9):
        made, x = block(i, x, w, rows)
        ops.extend(made)
    return Graph("gpt2", {"B": 4}, {}, tensors=declared, ops=tuple(ops))


def main() -> None:
    """Print seconds of processor time for three sizes."""
    for count in (27_000, 100_000, 300_000):
        graph = model(count)
        start = time.process_time()
        text = print_graph(graph)
        middle = time.process_time()
        again = parse(text)
        end = time.process_time()
        ops = sum(1 for _ in again.walk())
        sys.stdout.write(
            f"{ops:>7} ops, {len(text) / 1e6:5.1f} MB: "
            f"print {middle - start:5.2f} s, read {end - middle:5.2f} s, "
            f"{1e6 * (end - middle) / ops:.1f} us an op\n"
        )


if __name__ == "__main__":
    main()
