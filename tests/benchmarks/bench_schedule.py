"""How fast steps are scheduled, explained, sampled and varied. Run it as a script."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from costmodels.devices.library import list_devices, load_device
from costmodels.pricing.price import price
from irgraph.ir.graph import Graph
from irgraph.language import Script, load_script
from irgraph.language import run as run_script
from irgraph.overheads import load_host
from irgraph.predict.prediction import predict
from irgraph.predict.variants import predict_variants
from irgraph.schedule.critical_path import critical_path
from irgraph.schedule.memory.peak import peak_memory
from irgraph.schedule.sampling import sample_steps
from irgraph.schedule.sensitivity import sensitivity
from irgraph.schedule.simulate import simulate
from irgraph.schedule.tasks import TaskBuilder, run
from irgraph.schedule.timeline import Intervals, Resource, Timeline
from irgraph.text import parse

LAYER = """%a{i} = aten.linear(%h{p}, %w) : f32[B, 512] in $a{i} in module "l.{i}" {{
  %t{i} = aten.t(%w) : f32[512, 512; 1, 512] in $w
  %a{i} = aten.addmm(%c, %h{p}, %t{i}) : f32[B, 512] in $a{i}
}}
%h{i} = aten.{act}(%a{i}) : f32[B, 512] in $h{i} in module "l.{i}"
"""

HEAD = """model "m" { format = 1  dims = {B = 512} }

device @gpu0 "v100"
input %h0 : f32[B, 512] in $h0
param %w "w" : f32[512, 512] in $w
param %c "c" : f32[512] in $c

"""


def step(ops: int) -> Graph:
    """Return a step of so many top-level operations, each launching a kernel."""
    acts = ("relu", "sigmoid", "tanh", "exp", "neg", "abs")
    layers = (LAYER.format(i=i + 1, p=i, act=acts[i % 6]) for i in range(ops // 2))
    return parse(HEAD + "".join(layers))


def chains(tasks: int) -> Timeline:
    """Return a timeline of a host and two streams with waits among them."""
    build = TaskBuilder()
    random = np.random.default_rng(0)
    lengths = random.exponential(5.0, tasks).tolist()
    last = -1
    for number, length in enumerate(lengths):
        turn = number % 4
        if turn < 2:
            last = build.add(0, "T2", length, op=number % 1000)
        else:
            build.add(turn - 1, "kernel", length, op=number % 1000, waits=(last,))
    columns = build.tasks()
    start, end = run(columns)
    names = (Resource("host", "main"), Resource("gpu0", "default"), Resource("gpu0", "s"))
    ops = tuple(step(1000).top_level())
    return Timeline(Intervals(columns, start, end, ops), names)


def timed(what: str, call: Callable[[], object]) -> None:
    """Print the best processor time of three calls."""
    best = float("inf")
    for _ in range(3):
        begin = time.process_time()
        call()
        best = min(best, time.process_time() - begin)
    sys.stdout.write(f"{what:60s} {1000 * best:9.1f} ms\n")


def main() -> None:
    """Time everything and print a line for each."""
    graph, sheet, host = step(1000), load_device("v100"), load_host("v100")
    priced = price(graph, sheet)
    timeline = simulate(priced, host)
    sys.stdout.write(f"a step of 1,000 operations: {len(timeline.intervals)} tasks\n")
    timed("price", lambda: price(graph, sheet))
    timed("simulate", lambda: simulate(priced, host))
    timed("critical path with slack", lambda: critical_path(replace(timeline)).slack)
    for text in ("resize B = 1024", "remove many %y = aten.abs(%x) using %x for %y"):
        script = load_script(text)
        timed(f"what-if: {text}", lambda script=script: _what_if(graph, script))
    timed("sensitivity of operations, families and causes", lambda: sensitivity(timeline))
    timed("400 samples", lambda: sample_steps(timeline, host))
    sizes = [{"B": 64 * n} for n in range(1, 64)]
    devices = list_devices()
    count = len(sizes) * len(devices)
    timed(f"{count} variants", lambda: predict_variants(graph, devices, sizes))
    for ops in (1_000, 10_000, 100_000):
        longer = step(ops)
        timed(f"{ops:,} operations, peak memory", lambda longer=longer: peak_memory(longer))
    for tasks in (220_000, 2_000_000):
        large = chains(tasks)
        timed(f"{tasks:,} tasks, times", lambda large=large: run(large.columns.tasks))
        timed(
            f"{tasks:,} tasks, critical path", lambda large=large: critical_path(large).by_cause()
        )
        timed(f"{tasks:,} tasks, slack", lambda large=large: critical_path(large).slack)


def _what_if(graph: Graph, script: Script) -> None:
    predict(run_script(script, graph).graph)


if __name__ == "__main__":
    main()
