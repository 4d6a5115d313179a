"""The whole workflow on the example: trained, quantised, executed, searched, monitored."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from typer.testing import CliRunner

from irgraph.capture.live import capture_file
from irgraph.cli.main import app
from irgraph.precision.candidates import candidates, script
from irgraph.precision.data import Data, random_batch, read_data
from irgraph.precision.measure import PrecisionBench
from irgraph.precision.predictions import Predictions, predictions_of
from irgraph.precision.report import FormatSearch, find_plan
from irgraph.precision.search import FormatCost, best_sums, search
from irgraph.predict.options import PredictOptions
from irgraph.text import IrgraphError, parse, print_graph
from tests.precision.all_plans import best_of_all

FILE = Path(__file__).resolve().parents[2] / "examples" / "quantize.py"
DEVICE = PredictOptions(device="a100-sxm4-80gb")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the example's model and data, trained for a few steps."""
    from irgraph.capture.live.target import load_file

    made = tmp_path_factory.mktemp("quantize")
    example = load_file(str(FILE))
    torch.save(example.data(steps=60, size=1024, count=2), made / "data.pt")
    graph = capture_file(f"{FILE}:infer", batch=1024).graph
    (made / "model.ir").write_text(print_graph(graph))
    return made


@pytest.fixture(scope="module")
def bench(folder: Path) -> PrecisionBench:
    graph = parse((folder / "model.ir").read_text())
    data = read_data(str(folder / "data.pt"), graph)
    return PrecisionBench(graph, candidates(graph, ["i8", "i4"]), data, DEVICE)


def test_the_reference_is_the_program(bench: PrecisionBench, folder: Path) -> None:
    from irgraph.capture.live.target import load_file

    held = torch.load(folder / "data.pt", weights_only=True)
    model = load_file(str(FILE)).Ranking()
    model.load_state_dict(held["parameters"])
    with torch.no_grad():
        clicks = torch.cat([model(*batch.values()) for batch in held["batches"]])
    torch.testing.assert_close(bench.reference_logits()[0].sigmoid(), clicks)
    assert bench.accuracy()["auc"] > 0.6, "it has learned something"


def test_divergences_add_up_and_errors_are_of_the_right_size(bench: PrecisionBench) -> None:
    for to, bar in (("i8", 0.15), ("i4", 0.15)):
        tables = {n: to for n, one in enumerate(bench.candidates) if one.kind == "table"}
        alone = sum(bench.errors({n: to}).kl for n in tables)
        assert len(tables) == 4
        assert bench.errors(tables).kl == pytest.approx(alone, rel=bar)
    first = min(tables)
    assert bench.errors({first: "i4"}).kl > 20 * bench.errors({first: "i8"}).kl > 0
    assert bench.noise(bench.candidates[first].results[0], {first: "i8"}) > 30


def test_errors_of_logits_add_up_closer_than_divergences(bench: PrecisionBench) -> None:
    """Popular rows have errors that all samples share: those of two tables cancel, or add up."""
    for to in ("i8", "i4"):
        plan = {n: to for n, one in enumerate(bench.candidates) if to in one.formats}
        joint, alone = bench.errors(plan).kl, sum(bench.errors({n: to}).kl for n in plan)
        assert bench.additive_divergence(plan) == pytest.approx(joint, rel=0.05)
        assert abs(bench.additive_divergence(plan) / joint - 1) <= abs(alone / joint - 1) + 0.01
        assert reckoned(bench, to, "table", "layer") == pytest.approx(joint, rel=0.05)


def reckoned(bench: PrecisionBench, to: str, *kinds: str) -> float:
    """Return what the search takes the divergence of all candidates in one format for."""
    problem = FormatSearch(bench, "parameters")
    problem.__dict__["items"] = [
        FormatCost(n, to, bench.errors({n: to}).kl, 1.0)
        for n, one in enumerate(bench.candidates)
        if to in one.formats and one.kind in kinds
    ]
    return best_sums(problem.items, problem.interaction)[-1].kl


class Added:
    """Every plan of the example's eight ops; divergences by the products of logits' errors."""

    def __init__(self, bench: PrecisionBench) -> None:
        alone = FormatSearch(bench, "parameters")
        self.items = alone.items
        pairs = [(item.candidate, item.format) for item in self.items]
        self.gains = {pair: item.gain for pair, item in zip(pairs, self.items, strict=True)}
        one = {pair: bench.additive_divergence(dict([pair])) for pair in pairs}
        both = {
            (a, b): bench.additive_divergence(dict([a, b]))
            for a, b in combinations(pairs, 2)
            if a[0] < b[0]
        }
        shared = {(a, b): kl - one[a] - one[b] for (a, b), kl in both.items()}
        self.known = one | shared

    def interaction(self, one: FormatCost, other: FormatCost) -> float:
        first, second = sorted((item.candidate, item.format) for item in (one, other))
        return self.known[first, second]

    def kl(self, plan: Mapping[int, str]) -> float:
        pairs = sorted(plan.items())
        return sum(self.known[key] for key in (*pairs, *combinations(pairs, 2)))

    def gain(self, plan: Mapping[int, str]) -> float:
        return sum(self.gains[pair] for pair in plan.items())


def test_the_search_is_within_a_percent_of_all_plans_of_eight_ops(bench: PrecisionBench) -> None:
    problem = Added(bench)
    assert len({item.candidate for item in problem.items}) == 8
    tables = {n: "i4" for n, one in enumerate(bench.candidates) if one.kind == "table"}
    assert problem.kl(tables) == pytest.approx(bench.errors(tables).kl, rel=0.05)
    for share in (0.1, 0.5, 0.9):
        budget = share * problem.kl(tables)
        found, best = search(problem, budget)[0], best_of_all(problem, budget)
        assert problem.kl(found) <= budget
        assert problem.gain(found) >= 0.99 * problem.gain(best) > 0


def test_the_plan_is_as_good_as_the_best_of_all(bench: PrecisionBench) -> None:
    tables = [n for n, one in enumerate(bench.candidates) if one.kind == "table"]
    problem = FormatSearch(bench, "parameters")
    budget = 0.5 * bench.errors(dict.fromkeys(tables, "i4")).kl
    found = find_plan(bench, budget, "parameters")
    assert found.errors.kl <= budget
    few = [one for one in problem.items if bench.candidates[one.candidate].kind == "table"]
    problem.__dict__["items"] = few
    best = best_of_all(problem, budget)
    assert problem.gain(found.plan) >= 0.99 * problem.gain(best)


def test_the_command_writes_a_plan_and_the_monitor_holds_it(folder: Path) -> None:
    model, data, plan = (str(folder / name) for name in ("model.ir", "data.pt", "plan.irg"))
    run = CliRunner().invoke
    given = [model, "--data", data, "--device", "a100-sxm4-80gb", "--formats", "i8"]
    done = run(app, ["quantize", *given, "--budget", "0.5%", "--for", "parameters", "-o", plan])
    assert done.exit_code == 0, done.output
    assert "quantize many aten.embedding_bag" in Path(plan).read_text()
    after = str(folder / "after.ir")
    assert run(app, ["opt", "-s", plan, model, "-o", after, "--check"]).exit_code == 0
    watched = ["quantize", model, "--data", data, "--plan", plan]
    assert run(app, [*watched, "--budget", "0.5%"]).exit_code == 0
    over = run(app, [*watched, "--budget", "1e-12"])
    assert over.exit_code == 1 and "over the budget" in over.output
    kept = folder / "watched.txt"
    assert not run(app, [*watched, "--budget", "0.5%", "-o", str(kept)]).stdout
    assert "within the budget" in kept.read_text()
    assert run(app, [*watched, "--budget", "1e-12", "--json", "-o", str(kept)]).exit_code == 1
    assert json.loads(kept.read_text())["over"] is True


def test_a_plan_that_does_not_fit_the_model_is_no_plan_that_keeps_the_budget(
    folder: Path,
) -> None:
    plan, run = folder / "odd.irg", CliRunner().invoke
    watched = ["quantize", str(folder / "model.ir"), "--budget", "1%", "--plan", str(plan)]
    plan.write_text('quantize many aten.embedding_bag where op.result == "other" to "i4"')
    assert "the plan does not fit" in str(run(app, watched).exception)
    plan.write_text("")
    assert "the plan is empty" in run(app, watched).output
    for name, value in (("--for", "links"), ("--formats", "i8"), ("--place", '"*" on "uvm"')):
        assert f"{name} applies to a search" in str(run(app, [*watched, name, value]).exception)


@pytest.mark.parametrize(
    "given",
    [
        ["--budget", "much"],
        ["--budget", "-1"],
        ["--budget", "1%", "--for", "glory"],
        ["--budget", "1%", "--formats", "i3"],
        ["--budget", "1%", "--data", "none.pt"],
        ["--budget", "1%", "--output-name", "nothing"],
    ],
)
def test_odd_input_is_refused(folder: Path, given: list[str]) -> None:
    done = CliRunner().invoke(app, ["quantize", str(folder / "model.ir"), *given])
    assert done.exit_code != 0
    assert not isinstance(done.exception, ValueError | KeyError | TypeError)


def test_data_that_does_not_fit_is_refused(bench: PrecisionBench, folder: Path) -> None:
    held = torch.load(folder / "data.pt", weights_only=True)
    batch = held["batches"][0]
    for wrong in (
        {**held, "batches": []},
        {**held, "batches": [{**batch, "input9": batch["input1"]}]},
        {**held, "batches": [{"input1": batch["input1"]}]},
        {**held, "parameters": {}},
        {**held, "labels": [torch.zeros(3)] * 5},
        {**held, "batches": [{**batch, "input1": batch["input1"][:, :5]}], "labels": []},
        {**held, "batches": [{**batch, "input1": batch["input1"][:7]}], "labels": []},
        {**held, "batches": [{**batch, "input2": batch["input2"].float()}], "labels": []},
        [1, 2],
    ):
        torch.save(wrong, folder / "wrong.pt")
        with pytest.raises(IrgraphError):
            read_data(str(folder / "wrong.pt"), bench.graph)


def test_less_crosses_links_where_tables_are_read_over_them(folder: Path) -> None:
    """Four tables, 4,096 lookups each of rows of 128 bytes; over PCIe in units of 32 bytes."""
    model, data = str(folder / "model.ir"), str(folder / "data.pt")
    given = ["quantize", model, "--data", data, "--budget", "1%", "--formats", "i8,i4,i2"]
    given += ["--for", "links", "--device", "a100"]
    run = CliRunner().invoke
    alone = run(app, given)
    assert "brings nothing over a link" in str(alone.exception)
    done = run(app, [*given, "--place", '"*" on "uvm"', "--json"])
    found = json.loads(done.stdout)
    assert found["figures"]["before"]["link_bytes"] == 4 * 4096 * 128
    assert found["figures"]["after"]["link_bytes"] == 4 * 4096 * 32, "20 bytes take a unit of 32"
    assert found["kl"] <= found["budget"]
    row = next(
        r for r in found["rows"] if r["parameter"] == "tables.0.weight" and r["format"] == "i8"
    )
    assert row["link_bytes"] == 4096 * (128 - 64), "40 bytes take two"
    assert 'to "i4"' in found["script"] and "linear" not in found["script"]


def test_tables_that_are_placed_already_are_named(folder: Path) -> None:
    placed, run = str(folder / "placed.ir"), CliRunner().invoke
    model = str(folder / "model.ir")
    done = run(app, ["opt", "-e", 'place "tables.[01]*" on "uvm"', model, "-o", placed])
    assert done.exit_code == 0, done.output
    given = ["quantize", placed, "--budget", "1%", "--formats", "i8", "--for", "links"]
    found = run(app, given).output
    names = "tables.0.weight, tables.1.weight"
    assert f"not tried: {names} in i8: it is placed already" in found
    assert "nothing chosen" in found


@pytest.mark.parametrize(
    ("place", "why"),
    [("nothing", "needs 'on' here"), ('"none" on "uvm"', "no table"), ('"*" on "moon"', "no tier")],
)
def test_places_that_make_no_sense_are_refused(folder: Path, place: str, why: str) -> None:
    given = ["quantize", str(folder / "model.ir"), "--budget", "1%", "--place", place]
    done = CliRunner().invoke(app, [*given, "--formats", "i8"])
    assert isinstance(done.exception, IrgraphError) and why in str(done.exception)


HEADS = """model "m" { format = 2  dims = {B = 64} }

device @gpu0 "a100"
input %x : f32[B, 16] in $x
param %v "v" : f32[1, 16] in $v
param %w "w" : f32[8, 16] in $w
param %u "u" : f32[16, 16] in $u

%h = aten.linear(%x, %u) : f32[B, 16] in $h
%a = aten.linear(%h, %v) : f32[B, 1] in $a
%p = aten.sigmoid(%a) : f32[B, 1] in $p
%b = aten.linear(%h, %w) : f32[B, 8] in $b
%q = aten.softmax(%b, -1) : f32[B, 8] in $q
%s = aten.sum(%h) : f32[] in $s
return %s, %h, %p, %q
"""


def test_all_heads_of_a_step_are_compared() -> None:
    """What a layer loses shows wherever it goes: divergences of several predictions add up."""
    graph = parse(HEADS)
    assert predictions_of(graph) == Predictions(("a", "b"), ("s", "h"))
    bench = PrecisionBench(graph, candidates(graph, ["i8"]), random_batch(graph), DEVICE)
    both = {n: bench.errors({n: "i8"}).kl for n, one in enumerate(bench.candidates)}
    assert len(both) == 3 and all(kl > 0 for kl in both.values())
    for name in ("a", "b"):
        one = PrecisionBench(graph, candidates(graph, ["i8"]), random_batch(graph), DEVICE, name)
        alone = {n: one.errors({n: "i8"}).kl for n in both}
        assert sum(kl > 0 for kl in alone.values()) == 2, "the other head is not compared"
        both = {n: kl - alone[n] for n, kl in both.items()}
    assert list(both.values()) == pytest.approx([0, 0, 0], abs=1e-12)
    plan = dict.fromkeys(both, "i8")
    assert bench.additive_divergence(plan) == pytest.approx(bench.errors(plan).kl, rel=0.3)


def test_logits_that_a_sigmoid_overwrites_are_compared_before() -> None:
    there = "%p = aten.sigmoid(%a) : f32[B, 1] in $p\n"
    plain = parse(HEADS.replace("return %s, %h, %p, %q", "return %p"))
    graph = parse(HEADS.replace(there, "aten.sigmoid_(%a!)\n").replace("%h, %p, %q", "%h, %a"))
    found = [
        PrecisionBench(one, candidates(one, ["i8"]), random_batch(one), DEVICE, "a")
        for one in (plain, graph)
    ]
    first, second = (bench.errors({0: "i8"}).kl for bench in found)
    assert second == pytest.approx(first, rel=1e-9)
    used = print_graph(graph).replace("%b =", "%c = aten.mul(%a, %a) : f32[B, 1] in $c\n%b =")
    with pytest.raises(IrgraphError, match=r"aten\.mul reads that: its logits are gone"):
        PrecisionBench(parse(used), [], random_batch(graph), DEVICE, "a")


def test_a_loss_is_no_prediction() -> None:
    graph = parse(HEADS.replace("return %s, %h, %p, %q", "return %s"))
    with pytest.raises(IrgraphError, match="returns no predictions: %s has 0 axes"):
        predictions_of(graph)
    assert predictions_of(graph, "p, %b").logits == ("a", "b")


SINGLE = """model "m" { format = 2  dims = {B = 64} }

device @gpu0 "a100"
input %i : i64[B] in $i
param %t "t" : f32[100, 16] in $t
param %w "w" : f32[1, 16] in $w

%e = aten.embedding(%t, %i) : f32[B, 16] in $e
%y = aten.linear(%e, %w) : f32[B, 1] in $y
return %y
"""


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("labels", torch.zeros(3), "3 labels for 1024 predictions"),
        ("parameters", torch.tensor(float("nan")), "nan or infinity"),
    ],
)
def test_predictions_that_nothing_can_be_held_against_are_refused(
    bench: PrecisionBench, folder: Path, name: str, value: torch.Tensor, why: str
) -> None:
    held = torch.load(folder / "data.pt", weights_only=True)
    if name == "labels":
        held["labels"] = [value] * len(held["batches"])
    else:
        held["parameters"] = {k: v * value for k, v in held["parameters"].items()}
    torch.save(held, folder / "odd.pt")
    with pytest.raises(IrgraphError, match=why):
        PrecisionBench(
            bench.graph, bench.candidates, read_data(str(folder / "odd.pt"), bench.graph), DEVICE
        )


def test_a_format_that_overflows_is_over_every_budget() -> None:
    graph = parse(SINGLE)
    given = {"t": torch.full((100, 16), 1e6), "w": torch.rand(1, 16), "i": torch.arange(64)}
    data = Data([given], {"B": 64}, [], "made up")
    bench = PrecisionBench(graph, candidates(graph, ["f16", "bf16"]), data, DEVICE)
    assert bench.errors({0: "f16"}).kl == math.inf
    assert find_plan(bench, 1.0, "parameters").plan[0] == "bf16"


def test_predictions_that_tell_nothing_are_said_to_be_so(folder: Path) -> None:
    """No entropy: any divergence is more than all of it. All alike: no format seems to cost."""
    graph = parse(SINGLE)
    sure, same = (
        {"t": torch.full((100, 16), v), "w": torch.rand(1, 16), "i": torch.arange(64)}
        for v in (1e6, 0.0)
    )
    bench = PrecisionBench(
        graph, candidates(graph, ["f16"]), Data([sure], {"B": 64}, [], ""), DEVICE
    )
    assert bench.entropy() == 0 and bench.errors({0: "f16"}).share == math.inf
    assert PrecisionBench(
        graph, [], Data([same], {"B": 64}, [], ""), DEVICE
    ).constant_predictions() == ["y"]
    path = folder / "single.ir"
    path.write_text(SINGLE)
    torch.save(
        {"parameters": {"t": same["t"], "w": same["w"]}, "batches": [{"i": same["i"]}]},
        folder / "single.pt",
    )
    given = ["quantize", str(path), "--data", str(folder / "single.pt"), "--budget", "1%"]
    done = CliRunner().invoke(app, [*given, "--formats", "f16"])
    assert "the same for all samples, so errors hardly show: %y" in done.output


def test_what_is_drawn_is_the_same_in_every_format() -> None:
    """Rows by themselves become bags: their indices are drawn once, for the reference."""
    graph = parse(SINGLE)
    bench = PrecisionBench(graph, candidates(graph), random_batch(graph), DEVICE)
    for to, most in (("f16", 1e-3), ("i8", 0.01), ("i4", 0.12), ("f8e4m3", 0.04)):
        errors = bench.errors({0: to})
        assert 0 < errors.ops["e"] < most
    assert bench.compare(graph).kl == 0


def test_training_steps_offer_nothing_and_a_plan_of_nothing_is_empty(bench: PrecisionBench) -> None:
    assert script(bench.candidates, {}) == ""
    assert random_batch(bench.graph).source.startswith("drawn")
    assert predictions_of(bench.graph).logits == bench.logits
    with pytest.raises(IrgraphError):
        predictions_of(replace(bench.graph, returned=()))
