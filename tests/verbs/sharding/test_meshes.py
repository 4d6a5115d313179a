"""Parameters and optimizers that ranks of a mesh share beside layers, proven by running all."""

from __future__ import annotations

from collections import Counter

import pytest
from torch import nn

from irgraph.ir.graph import Graph
from irgraph.ir.ranks import group_of, is_collective
from irgraph.plans.plan import Mesh, Plan
from irgraph.plans.reading import read_plan
from tests.execute.test_parallel_layers import (
    COLUMN,
    PAIRS,
    ROW,
    language,
    perceptron,
    proven,
)
from tests.verbs.sharding.test_captured_models import (
    Encoder,
    Experts,
    Heads,
    Inception,
    Patches,
    Recurrent,
    step_of,
)

ZERO = {
    "ZeRO-1": {"optimizer": "split"},
    "ZeRO-2": {"optimizer": "split", "gradients": "split"},
    "ZeRO-3": {"parameters": "split"},
    "retained": {"parameters": "retained"},
}
TWICE, HYBRID = Mesh(2, 2), Mesh(2, 1, 2)


def plan(mesh: Mesh, kind: str, **options: object) -> Plan:
    """Return a plan of a mesh, as its text is read."""
    return read_plan(str(Plan(mesh.size, mesh=mesh, **ZERO[kind], **options)))  # type: ignore[arg-type]


def moves(graph: Graph) -> Counter[tuple[str, str]]:
    """Return the collectives by name and group, without those of numbers."""
    calls = (op for op in graph.leaves() if is_collective(op) and op.inputs[0].shape)
    return Counter((op.base.rstrip("_"), group_of(op)) for op in calls)


@pytest.mark.parametrize("kind", ZERO)
def test_a_language_model_is_split_by_layers_and_parameters(kind: str) -> None:
    done = proven(language(), plan(TWICE, kind, layers=PAIRS))
    names = moves(done.graph)
    assert names["all_reduce", "tensor"] == 4
    assert names["all_gather_into_tensor", "data"] > 0
    assert names["reduce_scatter_tensor", "data"] > 0


@pytest.mark.parametrize("kind", ZERO)
def test_replicas_sum_gradients_of_their_shares(kind: str) -> None:
    done = proven(language(), plan(HYBRID, kind))
    names = moves(done.graph)
    assert {group for _, group in names} == {"data", "replicas"}
    assert {name for name, group in names if group == "replicas"} <= {
        "all_reduce",
        "all_reduce_coalesced",
    }


@pytest.mark.parametrize("kind", ZERO)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_perceptron_is_split_by_layers_and_parameters(kind: str, optimizer: str) -> None:
    layers = {"0": COLUMN, "2": ROW, "4": COLUMN}
    proven(perceptron(optimizer), plan(TWICE, kind, layers=layers))


def test_three_axes() -> None:
    proven(language(), plan(Mesh(2, 2, 2), "ZeRO-3", layers=PAIRS, pins={"1.norm1": "split 1"}))


MODELS: dict[type[nn.Module], dict[str, dict[str, str]]] = {
    Encoder: {"pins": {"first": "split 1"}},
    Heads: {"layers": {"query": COLUMN, "key": COLUMN}},
    Experts: {"layers": {"gate": COLUMN}},
    Inception: {"layers": {"second": ROW}},
    Patches: {"layers": {"layer.linear1": COLUMN, "layer.linear2": ROW}},
    Recurrent: {"layers": {"scores": ROW}},
}


@pytest.mark.parametrize("mesh", [TWICE, HYBRID])
@pytest.mark.parametrize("kind", ["ZeRO-2", "ZeRO-3"])
@pytest.mark.parametrize("model", MODELS)
def test_captured_models_are_split_twice(model: type[nn.Module], kind: str, mesh: Mesh) -> None:
    options = MODELS[model] if mesh == TWICE else {}
    proven(step_of(model), plan(mesh, kind, **options))
