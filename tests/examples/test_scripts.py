"""The scripts that ship as examples run on steps captured from the examples."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from irgraph.capture.live import capture_file
from irgraph.execute import compare
from irgraph.ir.graph import Graph
from irgraph.ir.resize import with_dims
from irgraph.language import Outcome, load_script, run
from irgraph.predict.target import target
from irgraph.text import IrgraphError, parse, print_graph

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = EXAMPLES / "scripts"

DLRM = "dlrm.py:default(max_rows=500, lookups=3)"
DDP = 'dlrm.py:infer(name="ddp", lookups=3)'
SMALL = "(layers=1, width=32, heads=2, length=16"

RUNS: dict[tuple[str, str], tuple[int, ...]] = {
    ("add-norm", DLRM): (5,),
    ("add-norm", "mlp.py:train"): (2,),
    ("cast-gemms", DLRM): (20,),
    ("cast-gemms", "mlp.py:train"): (8,),
    ("cast-gemms", f"transformer.py:train{SMALL})"): (15,),
    ("chained", DDP): (8, 1),
    ("clean-copies", DLRM): (0, 11, 0, 10, 0, 9, 0, 8, 0, 7, 0, 6, 0, 5, 0, 4, 8, 0),
    ("drop-dropout", f"transformer.py:train{SMALL}, dropout=0.1)"): (2,),
    ("early-bottom", DLRM): (4,),
    ("fuse-adam", "mlp.py:train"): (1,),
    ("fuse-embedding", DLRM): (8, 8),
    ("fuse-epilogue", DLRM): (5, 0),
    ("fuse-epilogue", "mlp.py:train"): (2, 0),
    ("hoist-h2d", DLRM): (8,),
    ("hoist-h2d", "mlp.py:train"): (2,),
    ("overlap-allreduce", DLRM): (20, 20),
    ("overlap-allreduce", "mlp.py:train"): (6, 6),
    ("tiers", DDP): (0, 0, 2),
}
"""How often each statement of a script matches in each example."""

SAME = {
    "chained",
    "clean-copies",
    "fuse-adam",
    "fuse-embedding",
    "fuse-epilogue",
    "hoist-h2d",
    "tiers",
}
"""Scripts after which the step computes the same."""


@cache
def step(example: str) -> Graph:
    """Return a step of an example, captured for any batch size."""
    name, _, options = example.partition("(")
    made = f"{EXAMPLES / name}" + (f"({options}" if options else "")
    device = "cpu" if "transformer" in name else "meta"
    return capture_file(made, batch=16, device=device).graph


def applied(name: str, graph: Graph, device: str = "", **parameters: int) -> Outcome:
    """Return what a script makes of a step."""
    text = (SCRIPTS / f"{name}.irg").read_text(encoding="utf-8")
    pricer = target(device) if device else None
    return run(load_script(text, f"{name}.irg"), graph, parameters, pricer=pricer, targets=target)


@pytest.mark.parametrize(("name", "example"), RUNS)
def test_a_script_finds_what_it_looks_for(name: str, example: str) -> None:
    before = step(example)
    outcome = applied(name, before)
    matched = tuple(entry.matched for entry in outcome.report.entries)
    assert matched == RUNS[name, example]
    if name in SAME:
        assert outcome.graph != before
        assert compare(before, outcome.graph).same


def test_lookups_that_take_long_run_beside_the_bottom_layers() -> None:
    graph = with_dims(step("dlrm.py:default"), {"B": 2048})
    outcome = applied("parallel-branches", graph, "v100")
    assert "2 groups over 2 streams" in str(outcome.report)


def test_lookups_that_take_no_time_stay_where_they_are() -> None:
    graph = step(DLRM)
    outcome = applied("parallel-branches", graph, "v100")
    assert outcome.graph == graph
    assert "parallelize needs two or more groups" in str(outcome.report)


def test_a_step_takes_another_batch_size() -> None:
    assert applied("resize-batch", step(DLRM), to=64).graph.dims == {"B": 64}


def test_the_usual_recipe_is_swept_over_batches_and_devices() -> None:
    outcome = applied("co-design", step("dlrm.py:default"))
    lines = str(outcome.report).splitlines()
    assert "12 runs" in lines[0]
    assert sum("best" in line for line in lines) == 1
    assert "irgraph.batched_embedding_sgd" in {op.name for op in outcome.graph.walk()}


def test_a_product_moves_past_an_opaque_call_on_an_assumption() -> None:
    text = print_graph(step(DLRM))
    at = text.index("%bmm1 = ")
    opaque = parse(text[:at] + "custom.opaque(%cat1)\n" + text[at:], "opaque.ir")
    outcome = applied("unsafe", opaque)
    names = [op.name for op in outcome.graph.ops]
    assert "rests on 1 assumption" in str(outcome.report)
    assert names.index("aten.bmm") < names.index("custom.opaque")


def test_every_script_that_ships_is_run() -> None:
    elsewhere = {"co-design", "parallel-branches", "resize-batch", "unsafe"}
    assert {path.stem for path in SCRIPTS.glob("*.irg")} == {name for name, _ in RUNS} | elsewhere


def test_a_refused_script_leaves_the_step_as_it_was() -> None:
    with pytest.raises(IrgraphError):
        applied("resize-batch", step(DLRM), to=0)
