"""The example, trained as its page says: divergences add up, a budget of 0.02 % is kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from irgraph.capture.live import capture_file
from irgraph.language import load_script, run
from irgraph.precision.candidates import candidates
from irgraph.precision.data import read_data
from irgraph.precision.measure import PrecisionBench
from irgraph.precision.report import FormatSearch, find_plan
from irgraph.precision.search import FormatCost, best_sums
from irgraph.predict.options import PredictOptions

pytestmark = pytest.mark.slow

FILE = Path(__file__).resolve().parents[2] / "examples" / "quantize.py"
DEVICE = PredictOptions(device="h100")
SHARE = 2e-4
"""The budget, of the entropy of the predictions."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> PrecisionBench:
    from irgraph.capture.live.target import load_file

    path = tmp_path_factory.mktemp("trained") / "data.pt"
    torch.save(load_file(str(FILE)).data(), path)
    graph = capture_file(f"{FILE}:infer", batch=2048).graph
    known = candidates(graph, ["i8", "i4", "f8e4m3"], "h100")
    return PrecisionBench(graph, known, read_data(str(path), graph), DEVICE)


def plan_of(bench: PrecisionBench, to: str, *kinds: str) -> dict[int, str]:
    known = enumerate(bench.candidates)
    return {n: to for n, one in known if one.kind in kinds and to in one.formats}


@pytest.mark.parametrize(("to", "kinds"), [("i8", ("table", "layer")), ("i4", ("table",))])
def test_divergences_of_single_ops_add_up_to_that_of_all(
    bench: PrecisionBench, to: str, kinds: tuple[str, ...]
) -> None:
    plan = plan_of(bench, to, *kinds)
    assert len(plan) == 4 * len(kinds)
    alone = sum(bench.errors({n: to}).kl for n in plan)
    assert alone == pytest.approx(bench.errors(plan).kl, rel=0.05)


@pytest.mark.parametrize("to", ["i8", "i4", "f8e4m3"])
@pytest.mark.parametrize("kinds", [("table",), ("layer",), ("table", "layer")])
def test_errors_of_logits_add_up_where_divergences_miss(
    bench: PrecisionBench, to: str, kinds: tuple[str, ...]
) -> None:
    plan = plan_of(bench, to, *kinds)
    joint = bench.errors(plan).kl
    assert bench.additive_divergence(plan) == pytest.approx(joint, rel=0.05)
    problem = FormatSearch(bench, "parameters")
    problem.__dict__["items"] = [FormatCost(n, to, bench.errors({n: to}).kl, 1.0) for n in plan]
    whole = best_sums(problem.items, problem.interaction)[-1]
    assert {n: item.format for n, item in whole.choices.items()} == plan
    assert whole.kl == pytest.approx(joint, rel=0.05), "as the search reckons"


def test_a_budget_of_two_hundredths_of_a_percent_is_kept_by_the_executed_plan(
    bench: PrecisionBench,
) -> None:
    """The plan is run again as its script says, on batches of the search and on fresh ones."""
    from irgraph.capture.live.target import load_file

    reference = bench.errors(plan_of(bench, "i8", "table"))
    budget = SHARE * reference.kl / reference.share
    found = find_plan(bench, budget, "parameters")
    again = bench.compare(run(load_script(found.script), bench.graph).graph)
    assert again.kl == found.errors.kl <= budget
    assert again.share <= SHARE
    figures = found.figures
    assert figures["after"]["parameter_bytes"] < 0.25 * figures["before"]["parameter_bytes"]
    example = load_file(str(FILE))
    fresh = [dict(bench.data.batches[0]) | given for given, _ in example.batches(2048, 4, 1)]
    data = type(bench.data)(fresh, bench.data.dims, [], "fresh")
    other = PrecisionBench(bench.graph, bench.candidates, data, DEVICE)
    assert other.compare(run(load_script(found.script), bench.graph).graph).share <= 1.2 * SHARE
