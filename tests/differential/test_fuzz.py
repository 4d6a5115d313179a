"""Random programs under random scripts, and proof that the judge sees what is wrong."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from msgspec.structs import replace

from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.language import load_script, run
from irgraph.verbs import launch_order
from tests.differential.fuzz import (
    Failure,
    captured,
    different,
    fuzz,
    judged,
    trial,
)
from tests.differential.interpreter import Interpreter, WrongError
from tests.differential.programs import Program, program
from tests.differential.reducer import kind, reduced
from tests.language.models import model

TRIES = int(os.environ.get("IRGRAPH_FUZZ", "500"))


@pytest.mark.slow
def test_what_random_scripts_make_of_random_programs_computes_the_same() -> None:
    counts, failures = fuzz(TRIES)
    assert counts["changed"] > TRIES // 4
    assert not failures, "\n".join(map(str, failures))


CHAIN = """
input %x : f32[4] in $x
state %s : f32[4] in $s
%a = aten.neg(%x) : f32[4] in $a
aten.neg_(%x!)
aten.copy_(%s!, %a)
"""


def test_the_judge_sees_a_move_across_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    script = ["reorder aten.neg_ before aten.neg"]
    assert judged(model(CHAIN), script) == "refused"
    monkeypatch.setattr(launch_order.Line, "check", lambda *_: None)
    assert judged(model(CHAIN), script) == "wrong: %s differs"


def test_the_judge_sees_a_missing_event(monkeypatch: pytest.MonkeyPatch) -> None:
    script = ["reorder aten.neg earliest on stream side"]
    assert judged(model(CHAIN), script) == "changed"
    monkeypatch.setattr("irgraph.verbs.streams._joins", lambda *_: iter(()))
    loose = run(load_script(script[0]), model(CHAIN), verified=False).graph
    assert "%s differs" in {different(model(CHAIN), loose, seed) for seed in range(9)}


def test_the_interpreter_holds_results_against_the_graph() -> None:
    graph = model("input %x : f32[4] in $x\n%y = aten.neg(%x) : f32[5] in $y\n")
    with pytest.raises(WrongError, match="%y is torch"):
        Interpreter(graph).run()
    copied = model("input %x : f32[4] in $x\n%y = aten.view(%x, size = [4]) : f32[4] in $y\n")
    with pytest.raises(WrongError, match="the graph says apart"):
        Interpreter(copied).run()


def test_the_interpreter_names_writes_that_the_graph_does_not_say() -> None:
    text = """
input %x : f32[5, 4] in $x
state %m : f32[4] in $m
state %v : f32[4] in $v
%y, %a, %b = aten.native_batch_norm(%x, weight = none, bias = none, running_mean = %m, running_var = %v, training = true, momentum = 0.1, eps = 0.1) : f32[5, 4] in $y, f32[4] in $a, f32[4] in $b
"""  # noqa: E501
    run = Interpreter(model(text)).run()
    assert [tensor.name for _, tensor in run.unsaid] == ["m", "v"]


def test_a_capture_that_lost_an_op_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ("x = host.to(device, copy=True)", "net.keep1.mul_(2.0).add_(x)", "return None")
    declared = ("net.register_buffer('keep1', torch.ones(B, D))",)
    found = Program(declared, (), lines)
    graph = captured(found)
    monkeypatch.setattr("tests.differential.fuzz.program", lambda seed: found)
    assert not list(trial(0, Counter()))
    lost = replace(graph, ops=tuple(op for op in graph.ops if op.name != "aten.mul_"))
    monkeypatch.setattr("tests.differential.fuzz.captured", lambda _: lost)
    failures = [failure for failure in trial(0, Counter()) if "capture" in failure.how]
    assert failures == [Failure(0, (), failures[0].how)]


def test_reducing_keeps_the_kind_of_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    more = CHAIN + "%b = aten.neg(%s) : f32[4] in $b\n%c = aten.neg(%b) : f32[4] in $c\n"
    monkeypatch.setattr(launch_order.Line, "check", lambda *_: None)
    told = ["reorder aten.neg_ before aten.neg", "expect no aten.mm"]
    graph, statements, outcome = reduced(model(more), told, judged)
    assert kind(outcome) == "wrong:  differs"
    assert [op.name for op in graph.ops] == ["aten.neg", "aten.neg_", "aten.copy_"]
    assert statements == told[:1]


def test_programs_differ_and_are_the_same_again() -> None:
    assert program(3) == program(3) != program(4)
    made = {op.name for seed in range(8) for op in captured(program(seed)).walk()}
    assert len(made) > 40


def test_undefined_results_are_no_tensors() -> None:
    x = Tensor("x", "f32", (4,), "x")
    graph = model("input %x : f32[4] in $x\n")
    graph = replace(graph, ops=(Op("aten.neg", (x,), (None,)),))
    assert Interpreter(graph).run()["x"].shape == (4,)
