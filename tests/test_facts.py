"""The store of facts is bounded, and no result depends on it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from irgraph.facts import STORED, FactTable, StoredProperty, cached_calls, fact, facts_of
from irgraph.ir.op import Op

ROOT = Path(__file__).parents[1]
PASSES = ROOT / "tests" / "golden" / "passes"
MODELS = ("fuse-embedding", "cast-gemms", "checkpoint", "fuse-qkv", "hoist-h2d", "drop-norm")

SESSION = """
import sys
from pathlib import Path
import irgraph
from irgraph.cli.main import main
from irgraph.language import parse_pipeline, run
from irgraph.text import print_graph

folder, models = Path(sys.argv[1]), sys.argv[2:]
for name in models:
    before, after = folder / f"{name}.before.ir", folder / f"{name}.after.ir"
    for device in ("v100", "h100"):
        main(["predict", str(before), "--device", device])
    main(["opt", str(before), "--pass", name])
    main(["check", str(before), str(after)])
    graph = irgraph.load(before)
    for _ in range(2):  # with the facts of the first time, if any are stored
        outcome = run(parse_pipeline(name), graph)
        print(print_graph(outcome.graph))
        print(repr(irgraph.predict(outcome.graph, device="v100").step_time))
    for size in (2, 4) if "B" in graph.dims else ():
        resized = run(irgraph.load_script(f"resize B = {size}"), graph).graph
        print(print_graph(resized))
        print(repr(irgraph.predict(resized, device="v100").step_time))
"""


def session(stored: str, models: tuple[str, ...]) -> str:
    """Return all that commands print about models, with facts stored or not."""
    variables = {**os.environ, "IRGRAPH_FACTS": stored, "PYTHONPATH": str(ROOT)}
    call = [sys.executable, "-c", SESSION, str(PASSES), *models]
    done = subprocess.run(call, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_no_result_depends_on_stored_facts() -> None:
    with_facts, without = session("on", MODELS), session("off", MODELS)
    assert len(with_facts.splitlines()) > 500
    assert without == with_facts


def test_a_fact_is_computed_once_even_if_it_is_none() -> None:
    op, calls = Op("aten.relu"), list[Op]()
    for _ in range(2):
        assert fact(op, "test", calls.append) is None
    assert calls == [op] * (2 - STORED)
    assert ("test" in facts_of(op)) == STORED


def test_a_table_forgets_the_oldest() -> None:
    table = FactTable[str, int](2)
    for number, key in enumerate("abc"):
        table[key] = number
    assert list(table) == ["b", "c"][: 2 * STORED]


def test_a_large_table_forgets_an_eighth_at_once() -> None:
    table = FactTable[int, int](16)
    for number in range(17):
        table[number] = number
    assert list(table) == list(range(3, 17)) * STORED


def test_a_stored_property_is_computed_at_its_first_use() -> None:
    class Owner:
        calls = 0

        @StoredProperty
        def number(self) -> int:
            """Number of calls."""
            self.calls += 1
            return self.calls

    owner, other = Owner(), Owner()
    assert (owner.number, owner.number, other.number) == (1, 1, 1)
    assert owner.calls == 1
    assert Owner.number.__doc__ == "Number of calls."


def test_cached_calls_are_bounded() -> None:
    calls: list[int] = []

    @cached_calls(2)
    def double(number: int) -> int:
        calls.append(number)
        return 2 * number

    assert [double(n) for n in (1, 1, 2, 3, 1)] == [2, 2, 4, 6, 2]
    assert calls == [1, 2, 3, 1] if STORED else len(calls) == 5
