"""Secrets planted in every text of a trace and of a model: none is left."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from irgraph.anonymise.models import anonymous_graph
from irgraph.anonymise.renaming import Anonymiser
from irgraph.anonymise.traces import anonymise
from irgraph.ir.dim import Dim
from irgraph.ir.dtypes import ITEMSIZE
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.text import parse, print_graph
from tests.capture.execution_trace.fuzz import rows
from tests.capture.execution_trace.traces import trace as recorded
from tests.capture.kineto.builder import START, events, host

Plant = Callable[[str], str]
_SECRET = re.compile(r"secret|geheim", re.IGNORECASE)

FORMS: tuple[Callable[[int], Plant], ...] = (
    lambda n: lambda text: f"SECRET{n}",
    lambda n: lambda text: f"{text}SECRET{n}",
    lambda n: lambda text: f"{text} SECRET{n}",
    lambda n: lambda text: f"SECRET{n} {text}",
    lambda n: lambda text: f"{text}.geheim{n}",
    lambda n: lambda text: f"{text}::geheim{n}",
    lambda n: lambda text: f"{text}_secret_{n}_",
    lambda n: lambda text: f"geheim{n}::{text}",
    lambda n: lambda text: text.replace(" ", f" geheim{n} ") + f"#Secret{n}",
    lambda n: lambda text: f"{text[: len(text) // 2]}Secret{n}{text[len(text) // 2 :]}",
)
"""Ways of hiding a secret in a text: instead of it, behind it, in front of it, within it."""

SHAPES = ("ph", "cat", "traceEvents", "nodes", "schema")


def planted(value: Any, plant: Callable[[str], str], keys: bool) -> Any:
    """Return JSON with a secret in every text and, if asked, in the name of every field."""
    if isinstance(value, str):
        return plant(value)
    if isinstance(value, list):
        return [planted(item, plant, keys) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: planted(item, plant, keys) for key, item in value.items()}
    if keys:
        found |= {plant(key): item for key, item in value.items()}
    return found


def kineto() -> dict[str, Any]:
    """Return a Kineto trace with whatever else profilers write."""
    found = events()
    found.append(host("user_annotation", "Optimizer.step#SGD.step", START + 5, 100))
    found.append(host("python_function", "nn.Module: Linear_0", START + 5, 200))
    found.append({"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "p"}})
    found.append(
        {
            "ph": "s",
            "id": "a1",
            "cat": "ac2g",
            "name": "ac2g",
            "pid": "1",
            "tid": "stream 7",
            "ts": "12.5",
            "bp": "e",
        }
    )
    for event in found:
        args = event.setdefault("args", {})
        args |= {
            "Collective name": "allreduce",
            "dtype": "Float",
            "Input type": ["float", ""],
            "Input Dims": [["x"], []],
            "cuda_sync_kind": "Stream Sync",
            "stream": "stream 7",
            "Module Hierarchy": "a.b",
            "Call stack": "x.py",
            "grid": ["1"],
        }
    return {
        "schemaVersion": "1",
        "displayTimeUnit": "ms",
        "traceName": "x",
        "time": "now",
        "deviceProperties": [{"id": 0, "name": "Tesla V100-SXM2-16GB", "uuid": "u", "numSms": "8"}],
        "distributedInfo": {"backend": "nccl", "rank": "0", "host": "h"},
        "traceEvents": found,
    }


def check(text: str) -> None:
    left = {text[max(0, m.start() - 30) : m.end() + 20] for m in _SECRET.finditer(text)}
    assert not left


def run(trace: dict[str, Any], folder: Path, key: str) -> None:
    path = folder / "trace.json"
    path.write_text(json.dumps(trace))
    (copy,) = anonymise([str(path)], folder / "out", key=key)
    check(gzip.decompress(copy.read_bytes()).decode())


@pytest.mark.parametrize("key", ["", "k"])
@pytest.mark.parametrize("form", range(len(FORMS)))
@pytest.mark.parametrize("spared", [(), SHAPES], ids=["all", "outside shapes"])
@pytest.mark.parametrize("kind", ["kineto", "1.0.1", "1.1.1"])
def test_no_secret_of_a_trace_is_left(
    tmp_path: Path, kind: str, spared: tuple[str, ...], form: int, key: str
) -> None:
    trace = kineto() if kind == "kineto" else json.loads(recorded(*rows(), version=kind))
    numbers = count(1)

    def plant(text: str) -> str:
        return text if text in spared else FORMS[form](next(numbers))(text)

    made = planted(trace, plant, keys=True)
    if spared:
        for event, given in zip(
            made.get("traceEvents", ()), trace.get("traceEvents", ()), strict=True
        ):
            event.update({word: given[word] for word in ("ph", "cat") if word in given})
    run(made, tmp_path, key)
    assert next(numbers) > 50


MODEL = """model "m" { format = 2  dims = {B = 8, rows = 4}  source = "s"  trace_version = "1.0.3"  torch = "2.9.0"  captured_on = "cpu"  measured_on = "v100"  ranks = 4  fabric = "v100"  indices = "tower.*=zipf:1.05"  fixed_B = "aten.mm (et#3): 4 is not linear"  other = "o" }

schema "acme::look(Tensor a, str path=\\"p\\") -> Tensor"
device @gpu0 "v100"
device @gpu1 "a100"
stream copy @gpu0
input %in : f32[B, rows] in $b1
param %w "tower.weight" : f32[rows, 4] in $b2

"## label ##"() {
  %out = aten.mm(%in, %w) : f32[B, 4] in $b3 in module "tower" from "et.json#3"
  aten.relu_(%out!) in module "tower"
  %x = aten.div(%out, 2, rounding_mode="floor") : f32[B, 4] in $b4 on main/copy
  %y = acme.look(%x, path="p") : f32[B, 4] in $b5
}
return %y
"""  # noqa: E501


def everywhere(value: Any, plant: Callable[[str], str], skip: tuple[str, ...] = ()) -> Any:
    """Return a graph with a secret in every text of every record in it."""
    if isinstance(value, Dim):
        terms = [(tuple(map(plant, names)), n) for names, n in value.terms]
        return Dim(int(value), tuple(terms))
    if isinstance(value, str):
        return value if value in ITEMSIZE or value in skip else type(value)(plant(value))
    if isinstance(value, (tuple, frozenset)):
        return type(value)(everywhere(item, plant, skip) for item in value)
    if isinstance(value, dict):
        return {everywhere(k, plant, skip): everywhere(v, plant, skip) for k, v in value.items()}
    if not isinstance(value, Struct):
        return value
    names = [name for name in value.__struct_fields__ if name not in ("role", "phase")]
    return replace(value, **{n: everywhere(getattr(value, n), plant, skip) for n in names})


@pytest.mark.parametrize("key", ["", "k"])
@pytest.mark.parametrize("form", range(len(FORMS)))
def test_no_secret_of_a_model_is_left(form: int, key: str) -> None:
    graph: Graph = parse(MODEL)
    first: Op = next(graph.leaves())
    noted = replace(first, notes={"time": "t", "by": "measured", "acme": "n"})
    body = (noted, *graph.ops[0].body[1:])
    graph = replace(graph, ops=(replace(graph.ops[0], body=body),))
    made: dict[str, str] = {}

    def plant(text: str) -> str:
        return made.setdefault(text, FORMS[form](len(made) + 1)(text))

    hidden = everywhere(graph, plant)
    check(print_graph(anonymous_graph(hidden, Anonymiser(key))))
    assert len(made) > 40
    settings = everywhere(graph.settings, plant, tuple(graph.settings))
    renamed = anonymous_graph(replace(hidden, settings=settings), Anonymiser(key))
    check(print_graph(renamed))


def test_a_plain_model_prints_and_reads_back() -> None:
    made = anonymous_graph(parse(MODEL))
    assert parse(print_graph(made)) == made
    label = next(declared.label for declared in made.tensors if declared.label)
    assert made.settings["indices"] == f"{label}=zipf:1.05"


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("zipf:0.89,2.75+0.003+1e-4 bags normal:21,35", True),
        ("bags poisson", True),
        ("uniform bags equal", True),
        ("zipf:1 bags lognormal:0.5", True),
        ("zipf:1 bags secret", False),
        ("bags normal:secret,1", False),
        ("secret bags equal", False),
        ("zipf:1+secret", False),
    ],
)
def test_laws_of_lookups_stay_and_other_words_go(said: str, kept: bool) -> None:
    made = anonymous_graph(parse(MODEL.replace("tower.*=zipf:1.05", said)))
    assert (made.settings.get("indices") == said) is kept
    assert "secret" not in print_graph(made)
