"""The interface to cost models: the ones that ship offer it, and others may stand in."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest

import costmodels.backend
from irgraph.backend import DEFAULT, VARIABLE, Backend, architecture_of, backend, backend_name
from irgraph.predict.prediction import predict
from irgraph.text import parse

MODEL = """model "m" { format = 1 }

device @gpu0 "toy"
input %x : f32[1048576] in $b1

%y = aten.relu(%x) : f32[1048576] in $b2
"""

TOY = """
from types import SimpleNamespace
from costmodels.backend import device_of_card, fabrics, hosts, is_card
from irgraph.ir.cost import Kernel, Priced

TOY = SimpleNamespace(
    name="Toy", architecture="volta", target="sm_70", sms=80,
    memory_bytes=2**30, tf32=False, has_tf32=False
)

def device(name, graph=None):
    return TOY

def devices():
    return [TOY]

def price(graph, device, options):
    kernels = {op: (Kernel("toy", "toy", 1000.0),) for op in graph.ops}
    return Priced(graph, "Toy", kernels)
"""


def test_the_cost_models_that_ship_are_the_default() -> None:
    assert backend_name() == DEFAULT
    assert backend() is costmodels.backend


def test_they_offer_what_is_asked_of_them() -> None:
    operations = {name for name, _ in inspect.getmembers(Backend, inspect.isfunction)}
    for name in {name for name in operations if not name.startswith("_")}:
        ours = inspect.signature(getattr(costmodels.backend, name))
        asked = list(inspect.signature(getattr(Backend, name)).parameters)[1:]
        assert list(ours.parameters) == asked


def test_other_cost_models_may_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "toymodels"
    package.mkdir()
    (package / "backend.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(VARIABLE, "toymodels")
    found = predict(parse(MODEL), "anything")
    assert (found.sheet.name, found.timeline.active_time) == ("Toy", pytest.approx(1000))
    monkeypatch.delitem(sys.modules, "toymodels.backend")


@pytest.mark.parametrize(
    ("card", "architecture"), [("Tesla V100-DGXS-32GB", "volta"), ("Unheard-of Card", "")]
)
def test_variants_of_a_card_share_its_architecture(card: str, architecture: str) -> None:
    assert architecture_of(card) == architecture
