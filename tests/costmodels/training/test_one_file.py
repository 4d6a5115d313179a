"""A learned family is one file: an installed one is measured, trained, listed, scored and asked."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from irgraph.cli.main import main
from irgraph.predict.prediction import predict
from irgraph.text import parse
from tests.costmodels.conftest import DEVICES, write
from tests.installed import install, site

__all__ = ["site"]


FAMILY = '''"""Doubled matrices: a family of one op."""

from pathlib import Path

from costmodels.benchmarks.sweep import MATRIX, Sweep, forward
from costmodels.formulas.elements import ROOFLINE, streaming
from costmodels.formulas.machine import traffic, work
from costmodels.learnable.family import LearnedFamily, Query
from costmodels.learnable.inputs import Inputs, log2, roofline
from costmodels.learnable.launch import no_launch
from costmodels.learnable.settings import Architecture, Settings

SOURCE = "roofline; trained on made-up kernels"


def price(op, machine):
    result = op.outputs[0]
    learned = machine.learned_kernel("doubling", "double", dtype=result.dtype,
                                     elements=result.numel)
    return (learned or work("doubling", "double", streaming(machine, 2 * traffic(result)), 0.4,
                            ROOFLINE),)


RULES = {"toy.double": price}

SWEEPS = {"doubling": Sweep(forward({"double": lambda torch, matrix: 2 * matrix}), MATRIX)}


def inputs(sizes, device):
    nbytes = 8 * sizes["elements"]
    base, columns = roofline(sizes["elements"], nbytes, device)
    return Inputs(base, columns, [], log2(nbytes), device.indicators)


LEARNED = LearnedFamily(
    "doubling",
    ("double",),
    ("elements",),
    inputs,
    lambda arguments: Query("double", {"elements": float(arguments["elements"])}),
    Settings(steps=500, batch=64, rate=1e-2, architecture=Architecture(16, 2, 2)),
    no_launch,
    folder=Path(__file__).parent,
)
'''

MODEL = """model "toy" {{ format = 1 }}

device @gpu0 "v100"
schema "toy::double(Tensor x) -> Tensor"
input %x : {dtype}[{rows}, 1024] in $b1

%y = toy.double(%x) : {dtype}[{rows}, 1024] in $b2
"""


def _truth(elements: float) -> float:
    """Return the microseconds of a made-up kernel: half of a V100's bandwidth, and a start."""
    return 4.0 + 8 * elements / 400e3


@pytest.fixture
def family(site: Path) -> Path:
    """Install the family, beside measurements of its kernels alone, without any launch."""
    points = {"irgraph.families": {"doubling": "toy_doubling"}}
    install(site, "toy-learned", points, {"toy_doubling.py": FAMILY})
    rng = np.random.default_rng(0)
    sizes = [int(2 ** rng.uniform(10, 24)) for _ in range(400)]
    rows: list[dict[str, object]] = [
        {
            "op": "double",
            "device": DEVICES[number % 2],
            "elements": elements,
            "latency_ms": _truth(elements) / 1e3,
            "split": "train" if number % 5 else "dev",
        }
        for number, elements in enumerate(sizes)
    ]
    write(site, "doubling", rows)
    return site


@pytest.mark.slow
def test_one_file_is_measured_trained_listed_scored_and_asked(
    family: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured, weights = str(family / "m.jsonl"), family / "doubling.safetensors"
    assert main(["measure", "doubling", "--device", "cpu", "--count", "2", "-o", measured]) == 0
    assert "2 new measurements" in capsys.readouterr().err

    words = ["--data", str(family), "--no-study", "-o", str(weights)]
    assert main(["train", "doubling", *words]) == 0
    capsys.readouterr()

    assert main(["models", "--json"]) == 0
    listed = {row["family"]: row for row in json.loads(capsys.readouterr().out)}
    assert listed["doubling"]["MAPE %"] < 5

    for rows in (16, 2048):
        (kernel,) = predict(parse(MODEL.format(rows=rows, dtype="f32")), "v100").kernels()
        assert (kernel.by, kernel.family) == ("learned", "doubling")
        assert kernel.time == pytest.approx(_truth(rows * 1024), rel=0.1)
    (kernel,) = predict(parse(MODEL.format(rows=2048, dtype="f16")), "v100").kernels()
    assert kernel.by == "heuristic"

    _scored(family)


def _scored(folder: Path) -> None:
    """Score the model on held-out rows, beside gradient boosting on the same inputs."""
    from costmodels.evaluate.kernels import _by_device
    from costmodels.learned.weights import load_shipped
    from costmodels.training.recipe import read
    from costmodels.training.score import score_rows

    trained, (data, device) = load_shipped("doubling"), read("doubling", folder)
    judged = score_rows(trained, data, device, trained.launches)
    assert {what for what, part, _ in _by_device(judged) if part == "all"} == {
        f"double {name}" for name in DEVICES
    }
    from costmodels.evaluate.boosting import boosted_scores

    beside = boosted_scores(trained, data, device)
    assert beside[f"double {DEVICES[0]}", "all"].count == 40
