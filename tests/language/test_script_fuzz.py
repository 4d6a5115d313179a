"""Five hundred random scripts, legal and damaged; and that the oracle sees what is wrong."""

from __future__ import annotations

import random
import sys

import pytest
from msgspec.structs import replace

from irgraph.ir.op import Op
from irgraph.language import load_script, run
from irgraph.verbs import launch_order
from tests.language.fuzz import KINDS, fuzz
from tests.language.models import model
from tests.language.numeric import Machine

TRIES = 500


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_random_scripts_and_models(kind: str) -> None:
    outcomes = {KINDS[kind](seed) for seed in range(TRIES)}
    assert len(outcomes) > 1


def test_what_fails_is_told_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "model", lambda seed: 1 // (seed - 1) and "fine")
    counts, failed = fuzz(2)
    assert sum(counts.values()) == 5
    assert failed == {"model(1)": "ZeroDivisionError('integer division or modulo by zero')"}


TWO = """
input %x : f32[4] in $x
%a = aten.neg(%x) : f32[4] in $a
%b = aten.abs(%a) : f32[4] in $b
aten.neg_(%x!)
"""


def test_the_oracle_sees_a_move_that_is_not_legal(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = model(TWO)
    monkeypatch.setattr(launch_order.Line, "check", lambda *_: None)
    after = run(load_script("reorder aten.neg_ before first aten.neg"), graph).graph
    assert Machine(after).run().defined != Machine(graph).run().defined


def test_the_oracle_sees_an_event_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = model(TWO)
    monkeypatch.setattr(sys.modules["irgraph.verbs.streams"], "_joins", lambda *_: iter(()))
    script = load_script("reorder aten.abs latest on stream side")
    after = run(script, graph, verified=False).graph
    wanted = Machine(graph).run()
    found = [Machine(after).run(random.Random(seed)) for seed in range(20)]
    assert any(each.defined["b"] != wanted.defined["b"] for each in found)


def test_streams_that_wait_for_each_other_are_seen() -> None:
    graph = model(TWO)
    wait = Op("sync.wait", (graph.tensors[0].tensor,))
    with pytest.raises(AssertionError, match="every stream waits"):
        Machine(replace(graph, ops=(wait,))).run(random.Random(0))
