"""Calls alike are added at once: the tasks are those that their charges give one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import irgraph
from irgraph.backend import backend
from irgraph.ir.cost import Kernel, Priced, PriceOptions
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.overheads import load_host
from irgraph.schedule.accounting import BLOCKING, Accounting, find_accounting
from irgraph.schedule.building.step import Step
from irgraph.schedule.charges import Charges
from irgraph.schedule.simulate import simulate

MODELS = sorted((Path(__file__).parents[2] / "costmodels/evaluate/data").glob("*.ir"))
RULES = [
    *(replace(BLOCKING, queue_depth=depth) for depth in (1, 2, 3, 40, 1024)),
    replace(BLOCKING, launch_share=0.5, gap=0.0),
    find_accounting("code-2021"),
    find_accounting("code-head"),
]


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
@pytest.mark.parametrize("script", ["", "apply parallel-branches", "apply fuse-embedding"])
@pytest.mark.parametrize("rules", RULES, ids=lambda rules: f"{rules.name}-{rules.queue_depth}")
def test_calls_added_at_once_are_those_added_one_by_one(
    path: Path, script: str, rules: Accounting
) -> None:
    graph = irgraph.load(path)
    graph = irgraph.run_script(graph, script).graph if script else graph
    priced = backend().price(graph, "v100", PriceOptions())
    host = load_host("v100")
    step, charges = Step(priced, rules), Charges(priced, host, rules)
    for charge in charges:
        step.run(charge)
    one_by_one, at_once = step.build.tasks(), simulate(priced, host, accounting=rules)
    found = at_once.columns
    for name in one_by_one.__struct_fields__:
        a, b = getattr(one_by_one, name), getattr(found.tasks, name)
        assert np.array_equal(a, b), name
    assert found.ops == step.ops
    assert found.kernels == step.kernels
    assert at_once.levels == charges.levels
    assert len(step.build) == len(found)


def test_what_an_op_keeps_is_not_taken_for_another_price_of_it() -> None:
    """An op that had no price launches what it has now."""
    x = Tensor("x", "f32", (64, 64), "x", device="gpu0")
    made = [replace(x, name=f"y{i}", buffer=f"y{i}") for i in range(6)]
    first, second, third, fourth = (Op("my.op", (x,), (one,)) for one in made[:4])
    inner = Op("my.inner", (x,), (made[4],))
    outer = Op("my.op", (x,), (made[5],), body=(inner,))
    graph = Graph(name="g", ops=(first, second, third, fourth, outer))
    host, work = load_host("v100"), (Kernel("k", "gemm", 1000.0),)
    beside = {first: work, second: (), third: ()}
    for further in ({}, {fourth: work}, {inner: work}, {outer: work}, {}):
        priced = Priced(graph, "v100", {**beside, **further})
        kept = simulate(priced, host).columns
        step, charges = Step(priced, BLOCKING), Charges(priced, host, BLOCKING)
        for charge in charges:
            step.run(charge)
        assert kept.kernels == step.kernels
        assert np.array_equal(kept.tasks.length, step.build.tasks().length)


def test_an_op_that_became_unknown_launches_what_the_host_lists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same kernels stand for an op that models know, and for one that none knows."""
    host = load_host("v100")
    name = next(name for name, entry in host.file.ops.items() if len(entry.launches) > 1)
    x = Tensor("x", "f32", (64, 64), "x", device="gpu0")
    made = [replace(x, name=f"y{i}", buffer=f"y{i}") for i in range(4)]
    ops = tuple(Op(name, (x,), (one,)) for one in made)
    graph, work = Graph(name="g", ops=ops), (Kernel("k", "gemm", 1000.0),)
    rules = replace(BLOCKING, listed="unknown")
    asked: list[Op] = []
    launches = Charges.launches

    def counted(self: Charges, op: Op) -> object:
        asked.append(op)
        return launches(self, op)

    monkeypatch.setattr(Charges, "launches", counted)
    kernels = dict.fromkeys(ops, work)
    for unknown, anew in (((), ops), (ops[2:3], ops[2:3]), (ops[1:3], ops[1:3]), ((), ())):
        priced = Priced(graph, "v100", kernels, unknown)
        asked.clear()
        kept = simulate(priced, host, accounting=rules).columns
        assert asked == list(anew)
        step, charges = Step(priced, rules), Charges(priced, host, rules)
        for charge in charges:
            step.run(charge)
        assert kept.kernels == step.kernels
        assert np.array_equal(kept.tasks.length, step.build.tasks().length)
