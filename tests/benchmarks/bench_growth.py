"""Time scripts on models that grow: ``python tests/benchmarks/bench_growth.py [NAME ...]``.

Prints processor seconds at each number of ops, and the exponent between the first and the last:
1 is linear. ``--ops 500,6000,50000`` asks for other sizes.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from irgraph.ir.graph import Graph
from irgraph.language import load_script, run
from tests.benchmarks.bench_language import layers, lookups
from tests.language.models import model, training

T = "f32[B, 64]"
START = f"input %x0 : {T} in $x0\n"


def chain(count: int, *ops: str) -> Graph:
    """Return ops in turn, each of which takes what the one before gave."""
    made = (
        f"%x{k + 1} = aten.{ops[k % len(ops)]}(%x{k}) : {T} in $x{k + 1}\n" for k in range(count)
    )
    return model(START + "".join(made))


def fan(count: int, *ops: str) -> Graph:
    """Return series of ops that share no more than their first operand."""
    text = START
    for k in range(count // len(ops)):
        for i, op in enumerate(ops):
            taken = f"%y{k}_{i - 1}" if i else "%x0"
            text += f"%y{k}_{i} = aten.{op}({taken}) : {T} in $y{k}_{i}\n"
    return model(text)


def beside(count: int) -> Graph:
    """Return ops of two kinds in turn that all take the same tensor."""
    kinds = ("relu", "sigmoid")
    made = (f"%y{k} = aten.{kinds[k % 2]}(%x0) : {T} in $y{k}\n" for k in range(count))
    return model(START + "".join(made))


def views(count: int) -> Graph:
    """Return double transposes, each of what came before."""
    text = "input %x0 : f32[64, 64] in $x0\n"
    for k in range(count // 3):
        text += f"%t{k} = aten.t(%x{k}) : f32[64, 64; 1, 64] in $x{k}\n"
        text += f"%u{k} = aten.t(%t{k}) : f32[64, 64] in $x{k}\n"
        text += f"%x{k + 1} = aten.relu(%u{k}) : f32[64, 64] in $x{k + 1}\n"
    return model(text)


def fetches(count: int) -> Graph:
    """Return copies to the device, each behind work and before what uses it."""
    text = START
    text += "".join(f"input %h{k} : {T} @cpu in $h{k}\n" for k in range(count // 3))
    for k in range(count // 3):
        text += f"%y{k} = aten.relu(%x{k}) : {T} in $y{k}\n"
        text += f"%d{k} = memcpy.h2d(%h{k}) : {T} in $d{k}\n"
        text += f"%x{k + 1} = aten.add(%y{k}, %d{k}) : {T} in $x{k + 1}\n"
    return model(text)


def gradients(count: int) -> Graph:
    """Return gradients that autograd hands over."""
    text = "".join(f"input %g{k} : {T} in $g{k}\n" for k in range(count // 2))
    for k in range(count // 2):
        text += f"autograd.AccumulateGrad(%g{k}) phase backward {{\n"
        text += f"  %e{k} = aten.detach(%g{k}) : {T} in $g{k}\n}}\n"
    return model(text)


CASES: dict[str, tuple[Callable[[int], Graph], str]] = {
    "cast": (lambda n: layers(n // 4), "cast many aten.{linear,addmm} to bf16"),
    "cast-chain": (lambda n: chain(n, "relu"), "cast many aten.relu to bf16"),
    "cast-gemms": (lambda n: layers(n // 4), "apply cast-gemms"),
    "remove": (
        lambda n: chain(n, "relu", "sigmoid"),
        "remove many %y = aten.relu(%x) using %x for %y",
    ),
    "remove-chain": (
        lambda n: chain(n, "clone"),
        "remove many %y = aten.clone(%x) using %x for %y",
    ),
    "remove-fan": (
        lambda n: fan(n, "clone", "relu"),
        "remove many %y = aten.clone(%x) using %x for %y",
    ),
    "clean-copies": (lambda n: chain(n, "clone", "relu"), "apply clean-copies"),
    "clean-fan": (lambda n: fan(n, "clone", "relu"), "apply clean-copies"),
    "clean-views": (views, "apply clean-copies"),
    "remove-dead": (lambda n: fan(n, "relu", "sigmoid"), 'apply remove-dead(keep = "none")'),
    "dead-chain": (lambda n: chain(n, "relu"), 'apply remove-dead(keep = "none")'),
    "parallelize": (
        lambda n: fan(n, "relu", "sigmoid"),
        "parallelize many { %y = aten.relu(%x)  %z = aten.sigmoid(%y) } over 4 streams",
    ),
    "earliest": (beside, "reorder many aten.sigmoid earliest"),
    "latest": (beside, "reorder many aten.relu latest"),
    "hoist-h2d": (fetches, "apply hoist-h2d"),
    "overlap-allreduce": (gradients, "apply overlap-allreduce"),
    "insert": (
        lambda n: chain(n, "relu", "sigmoid"),
        "insert %z = aten.clone(%y) after many %y = aten.relu(_) using %z for %y",
    ),
    "fuse": (
        lambda n: layers(n // 4),
        "apply fuse-epilogue",
    ),
    "replace": (
        lambda n: chain(n, "relu", "sigmoid"),
        "replace many %y = aten.relu(%x) with { %y = aten.clamp_min(%x, 0) }",
    ),
    "fuse-embedding": (lookups, "apply fuse-embedding"),
    "fuse-training": (lambda n: training(n // 6), "apply fuse-embedding"),
    "fuse-optimizer": (lambda n: training(n // 6), "apply fuse-optimizer"),
    "resize": (lambda n: layers(n // 4), "resize B = 8"),
}
"""By name: how to make a model of so many ops, and the script."""


@cache
def graph_of(name: str, count: int) -> Graph:
    """Return a case's model of so many ops."""
    return CASES[name][0](count)


def seconds(name: str, count: int) -> float:
    """Return the processor time of a case at a size, over a fresh graph."""
    script = load_script(CASES[name][1])
    graph = graph_of(name, count)
    start = time.process_time()
    done = run(script, graph)
    spent = time.process_time() - start
    if done.graph is graph:
        raise SystemExit(f"{name}: nothing was done")
    return spent


def main() -> None:
    """Time the cases that are asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="cases; all by default")
    parser.add_argument("--ops", default="500,1500,6000", help="numbers of ops")
    asked = parser.parse_args()
    sizes = [int(size) for size in asked.ops.split(",")]
    for name in asked.names or CASES:
        seconds(name, sizes[0])  # what is loaded once
        graph_of.cache_clear()
        times = [seconds(name, size) for size in sizes]
        growth = math.log(times[-1] / times[0]) / math.log(sizes[-1] / sizes[0])
        shown = "  ".join(
            f"{size}: {spent:7.3f} s" for size, spent in zip(sizes, times, strict=True)
        )
        print(f"{name:<18} {shown}  exponent {growth:.2f}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
