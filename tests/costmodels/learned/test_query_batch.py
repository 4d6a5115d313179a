"""Questions that are answered at once have the answers of questions asked one by one."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources

import pytest

from costmodels.devices.library import load_device
from costmodels.formulas.machine import ModelEstimate
from costmodels.learnable.hardware import Hardware
from costmodels.learnable.inputs import Sizes
from costmodels.learned import query_batch as asked_together
from costmodels.learned.infer import Estimates
from costmodels.learned.predictors import predictors
from costmodels.learned.query_batch import BatchedModels, PendingEstimateError, QueryBatch
from costmodels.learned.weights import Weights
from costmodels.pricing.price import price
from irgraph.ir.cost import Kernel
from irgraph.ir.graph import Graph
from irgraph.ir.resize import with_dims
from irgraph.text import parse

DATA = resources.files("costmodels.evaluate") / "data"

PRODUCT = {"dtype": "f32", "layout": "tn", "batch": 1, "m": 512, "n": 512, "k": 512}


def shipped(name: str) -> Graph:
    return parse((DATA / name).read_text(encoding="utf-8"))


def shown(graph: Graph, models: Mapping[str, object]) -> list[tuple[int, tuple[Kernel, ...]]]:
    """Return the kernels of a step by the places of ops, in the order in which they are listed."""
    priced = price(graph, load_device("v100"), learned=models)  # type: ignore[arg-type]
    places = {op: at for at, op in enumerate(graph.walk())}
    return [(places[key], found) for key, found in priced.kernels.items()]


@pytest.mark.parametrize("name", ["dlrm_default.ir", "dlrm_mlperf.ir"])
@pytest.mark.parametrize("size", [1, 777, 2048])
def test_a_step_is_priced_as_if_asked_one_by_one(name: str, size: int) -> None:
    graph = with_dims(shipped(name), {"B": size})
    models = predictors(load_device("v100"), "torch-2")
    assert isinstance(models, BatchedModels)
    assert shown(graph, models) == shown(graph, dict(models))


def test_a_network_is_asked_once_for_all_products(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    estimate = asked_together.estimate

    def counted(weights: Weights, sizes: Sizes, device: Hardware) -> Estimates:
        rows.append(len(sizes["op"]))
        return estimate(weights, sizes, device)

    monkeypatch.setattr(asked_together, "estimate", counted)
    shown(shipped("dlrm_mlperf.ir"), predictors(load_device("v100"), "torch-2"))
    assert len(rows) <= 4
    assert max(rows) > 10


def test_a_collected_question_waits_for_its_answer() -> None:
    models = predictors(load_device("v100"), "torch-2")
    assert isinstance(models, BatchedModels)
    alone = models["gemm"](PRODUCT)
    others = predictors(load_device("v100"), "torch-2")
    assert isinstance(others, BatchedModels)
    others.batch.start()
    for m in (256, 512):
        with pytest.raises(PendingEstimateError):
            others["gemm"]({**PRODUCT, "m": m})
    others.batch.run()
    assert others["gemm"](PRODUCT) == alone


STEP = """model "m" { format = 1 }

device @gpu0 "v100"
input %x : f32[64, 32] in $b1
param %w : f32[16, 32] in $b2

%a = aten.relu(%x) : f32[64, 32] in $b3
%y = aten.linear(%a, %w) : f32[64, 16] in $b4 {
  %t = aten.t(%w) : f32[32, 16; 1, 32] in $b2
  %y = aten.mm(%a, %t) : f32[64, 16] in $b4
}
%z = aten.relu(%y) : f32[64, 16] in $b5
"""


def test_an_op_that_waited_in_vain_is_priced_by_those_inside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rule may ask and then know nothing: what is inside stands where its op does."""
    from costmodels.pricing import price as pricing

    def ask(sizes: Mapping[str, float | str]) -> ModelEstimate | None:
        return models["gemm"](PRODUCT)

    models = predictors(load_device("v100"), "torch-2")
    assert isinstance(models, BatchedModels)
    known = dict(pricing.rules())
    known["aten.linear"] = lambda op, machine: ask({}) and None
    monkeypatch.setattr(pricing, "rules", lambda: known)
    graph = parse(STEP)
    found, expected = shown(graph, models), shown(graph, dict(models))
    assert found == expected
    assert [place for place, _ in found] == [0, 2, 3, 4]


def test_questions_of_no_family_are_answered_by_nothing() -> None:
    together = QueryBatch()
    together.start()
    together.run()
    assert not BatchedModels({}, together)
