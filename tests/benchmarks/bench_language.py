"""Time scripts on models of about a thousand ops: ``python tests/benchmarks/bench_language.py``."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from examples.dlrm import Config, DLRMStep
from irgraph.capture.live import capture_file
from irgraph.ir.graph import Graph
from irgraph.language import load_script, run
from irgraph.predict.target import target
from tests.language.models import bag, model, table, training

ONE = "fuse %y = aten.relu(aten.addmm(%c, %x, %w)) into %y = irgraph.addmm_relu(%c, %x, %w)"
MISS = "remove %y = aten.relu(aten.addmm(%c, %x, %x)) using %x for %y"


def layers(count: int) -> Graph:
    """Return linear layers with activations, four ops each."""
    params = "".join(
        f"param %w{k} : f32[64, 64] in $w{k}\nparam %c{k} : f32[64] in $c{k}\n"
        for k in range(count)
    )
    ops = "".join(
        f"%h{k} = aten.linear(%x{k}, %w{k}, %c{k}) : f32[B, 64] in $h{k} {{\n"
        f"  %t{k} = aten.t(%w{k}) : f32[64, 64; 1, 64] in $w{k}\n"
        f"  %h{k} = aten.addmm(%c{k}, %x{k}, %t{k}) : f32[B, 64] in $h{k}\n}}\n"
        f"%x{k + 1} = aten.relu(%h{k}) : f32[B, 64] in $x{k + 1}\n"
        for k in range(count)
    )
    return model("input %x0 : f32[B, 64] in $x0\n" + params + ops)


def lookups(count: int) -> Graph:
    """Return lookups in as many tables."""
    return model("".join(map(table, range(count))) + "".join(map(bag, range(count))))


def report(what: str, script: str, graph: Graph) -> None:
    """Print the best of five runs, in milliseconds of processor time."""
    parsed = load_script(script)
    seconds = []
    for _ in range(5):
        start = time.process_time()
        run(parsed, graph, targets=target)
        seconds.append(time.process_time() - start)
    size = sum(1 for _ in graph.walk())
    print(f"{what:<34} {size:>6} ops {min(seconds) * 1e3:8.1f} ms")  # noqa: T201


def wide(batch: int, device: str) -> DLRMStep:
    """Return a DLRM step of about a thousand device ops: 120 tables."""
    config = Config((512, 512, 64), (1024, 1024, 1024, 1), (1000,) * 120, 100)
    return DLRMStep(config, batch, device)


WIDTH = 'resize %w.shape[0] of aten.linear(_, %w, ...) within "bot_mlp.0" = 1024'
ROWS = "resize %w.shape[0] of many aten.embedding_bag(%w, ...) = 500"
DIM = "resize %w.shape[1] of aten.embedding_bag(%w, ...) = 32"
BATCH = "resize %x.shape[0] of aten.linear(%x, ...) = 4096"
TIMES = 'target "v100" find slow = many aten.embedding_bag where op.time > 20us'
TIMED = """
target "v100"
repeat at most 60 { remove %y = aten.relu(%x) where op.time > 1us using %x for %y }
"""


def main() -> None:
    """Time a miss, one fusion, many fusions and one large one."""
    chain = layers(250)
    report("no match", MISS, chain)
    report("one fusion", ONE, chain)
    report("250 fusions", ONE.replace("fuse", "fuse many"), chain)
    report("26 tables, a training step", "apply fuse-embedding", training(26))
    report("1000 lookups into one", "apply fuse-embedding", lookups(1000))
    step = capture_file(f"{__file__}:wide", batch=2048).graph
    report("captured: fuse-embedding", "apply fuse-embedding", step)
    report("captured: one epilogue", ONE, step)
    report("captured: another batch size", "resize B = 4096", step)
    report("captured: a layer's width", WIDTH, step)
    report("captured: rows of all tables", ROWS, step)
    report("captured: width of all tables", DIM, step)
    report("captured: op.time of all lookups", TIMES, step)
    report("op.time between 60 changes", TIMED, chain)
    plain = capture_file(f"{__file__}:wide", batch=2048, symbolic=False).graph
    report("captured at one size: its batch", BATCH, plain)


if __name__ == "__main__":
    main()
