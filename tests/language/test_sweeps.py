"""``sweep`` and ``target``, with devices that the test makes up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.language import Outcome, load_script, run
from irgraph.text import IrgraphError, fail
from tests.language.models import mlp


@dataclass(frozen=True)
class Made:
    """A device on which each op takes so many microseconds."""

    speed: float

    def time(self, graph: Graph, op: Op) -> float:
        return self.speed

    def doubts(self, graph: Graph) -> Sequence[str]:
        return ["half of it is guessed"] if graph.dims["B"] == 2 else []

    def measure(self, graph: Graph) -> Mapping[str, float]:
        time = self.speed * (graph.dims["B"] + len(list(graph.leaves())))
        return {"step.time": time, "gpu.active": time / 2, "gpu.utilization": 0.5}


def find(name: str) -> Made:
    if name not in ("slow", "fast"):
        raise fail(f"no device {name}")
    return Made(2.0 if name == "slow" else 1.0)


def done(script: str) -> Outcome:
    return run(load_script(script), mlp(), targets=find)


SWEEP = (
    'sweep b in [8, 4], d in ["slow", "fast"] {{ target d resize B = b {} }}'
    " report step.time, gpu.utilization{}"
)


def test_a_sweep_runs_every_combination_and_keeps_the_best() -> None:
    outcome = done(SWEEP.format("", " best by step.time / b"))
    assert str(outcome.report) == (
        "sweep at script:1:1: 4 runs\n"
        "  b  d       step.time  gpu.utilization\n"
        '  8  "slow"  30         0.5\n'
        '  8  "fast"  15         0.5              best\n'
        '  4  "slow"  22         0.5\n'
        '  4  "fast"  11         0.5'
    )
    assert outcome.graph.dims == {"B": 8}


def test_without_best_a_sweep_changes_nothing() -> None:
    assert done(SWEEP.format("", "")).graph == mlp()


def test_a_combination_that_may_not_be_is_said_in_its_row() -> None:
    script = SWEEP.format("expect no aten.mm(%x, _) expect 3 aten.relu", " best by step.time")
    outcome = done(script)
    assert "expected 3 aten.relu, found 1" in str(outcome.report)
    assert outcome.graph == mlp()


def test_a_target_tells_the_time_of_ops() -> None:
    script = 'target "{}" expect 1 aten.sum where op.time > 1us'
    assert done(script.format("slow")).report.entries[0].done == "slow"
    with pytest.raises(IrgraphError, match=r"expected 1 aten\.sum, found 0"):
        done(script.format("fast"))


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ('target "fat"', "1:8: error: no device fat"),
        ("sweep b in [1] { } report step.time", "a sweep needs a device whose times it reports"),
        ("let n = 3 sweep b in n { } report step.time", "expected a list of values"),
        ("sweep b in [] { } report step.time", "'b' must be a list of values, not []"),
        ("let b = 3 sweep b in [1] { } report step.time", "'b' is defined twice"),
        (
            'sweep b in [1] { target "fast" } report gpu.actve',
            "a sweep cannot report gpu.actve; did you mean 'gpu.active'?",
        ),
        ('sweep b in [1] { target "fast" } report step.time < 3', "cannot be compared"),
        (
            'sweep b in ["x"] { target "fast" } report b best by b',
            "'best by' needs a number",
        ),
        (
            f"sweep b in [{'1, ' * 101}1], c in [{'1, ' * 101}1] {{ }} report step.time",
            "sweeps of a script can take at most 10000 runs, not 10404",
        ),
    ],
)
def test_a_sweep_that_cannot_be_says_why(script: str, message: str) -> None:
    with pytest.raises(IrgraphError) as caught:
        done(script)
    assert message in str(caught.value)


def test_a_target_needs_somebody_who_knows_devices() -> None:
    with pytest.raises(IrgraphError, match="no devices are available here"):
        run(load_script('target "fast"'), mlp())


def test_doubts_about_figures_stand_below_them_once() -> None:
    outcome = done('sweep b in [2, 8, 2] { target "fast" resize B = b } report step.time')
    assert str(outcome.report).endswith("\n  WARNING: half of it is guessed")
    assert str(outcome.report).count("half of it") == 1
