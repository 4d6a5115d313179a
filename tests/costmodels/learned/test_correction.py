"""A model of one device, from a file of measurements to a prediction."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import asdict, replace

from costmodels.benchmarks.bench import Case
from costmodels.devices.library import load_device
from costmodels.families import sweeps
from costmodels.learned.correction import (
    SIZES,
    OwnModel,
    corrector,
    features,
    load_own,
    op_key,
    save_own,
)
from costmodels.training.correction import samples
from irgraph.cli.main import main
from irgraph.diagnostics import IrgraphError
from irgraph.ir.op import Op
from irgraph.predict.prediction import predict
from irgraph.text import parse
from tests.costmodels.families.helpers import call, kernels, machine, tensor

MODEL = """model "one table" { format = 1 }

device @gpu0 "cpu"
param %w "emb" : f32[500, 16] in $b1
input %i : i64[256] in $b2
input %o : i64[64] in $b3
input %x : f32[64, 16] in $b4

%y, _, _, _ = aten.embedding_bag(%w, %i, %o) : f32[64, 16] in $b5, none, none, none
%z = aten.relu(%x) : f32[64, 16] in $b6
"""

LOOKUP = call(
    "aten.embedding_bag",
    tensor("w", 500, 16),
    tensor("i", 256, dtype="i64"),
    tensor("o", 64, dtype="i64"),
    out=(64, 16),
)


def _constant(factor: float, op: Op = LOOKUP, device: str = "V100-SXM2-16GB") -> OwnModel:
    """Return a model that says the same factor of every op of one kind."""
    ops = (op_key(op),)
    inputs = features(op, kernels(op, machine()), machine(), ops)
    layers = (
        (np.zeros((2, 1, len(inputs)), np.float32), np.full((2, 1), np.log(factor), np.float32)),
    )
    mean, scale = np.zeros_like(inputs), np.ones_like(inputs)
    return OwnModel("embedding", device, ops, layers, mean, scale, inputs, inputs, 0.1, {"rows": 9})


def test_a_factor_scales_time_and_interval_and_says_so() -> None:
    before = kernels(LOOKUP, machine())
    (after,) = _constant(2.0).correct(LOOKUP, before, machine())
    assert after.time == pytest.approx(2 * before[0].time)
    assert after.spread == pytest.approx(after.time * np.sinh(0.1))
    assert after.by == "learned" and not after.outside
    assert "9 measurements of V100-SXM2-16GB" in after.formula


def test_sizes_that_were_not_measured_are_flagged() -> None:
    larger = call("aten.embedding_bag", tensor("w", 50_000, 16), *LOOKUP.operands[1:], out=(64, 16))
    (after,) = _constant(2.0).correct(larger, kernels(larger, machine()), machine())
    assert after.outside and after.spread > 0.2 * after.time


def test_modes_of_a_bag_are_told_apart() -> None:
    largest = replace(LOOKUP, attributes={"mode": 2})
    assert op_key(largest) == "aten.embedding_bag mode=2" != op_key(LOOKUP)
    ops = (op_key(LOOKUP), op_key(largest))
    assert features(largest, (), machine(), ops)[SIZES:].tolist() == [0, 1]


def test_a_file_holds_all_of_a_model(tmp_path: Path) -> None:
    path = tmp_path / "own.safetensors"
    model = _constant(3.0)
    save_own(model, path)
    read = load_own(path)
    assert (read.family, read.device, read.ops) == (model.family, model.device, model.ops)
    before = kernels(LOOKUP, machine())
    assert read.correct(LOOKUP, before, machine()) == model.correct(LOOKUP, before, machine())


def test_a_model_of_another_device_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.safetensors"
    save_own(_constant(1.0, device="T4"), path)
    with pytest.raises(IrgraphError, match="trained for T4, not for V100-SXM2-16GB"):
        corrector([str(path)], load_device("v100"))


def test_other_files_are_no_such_models(tmp_path: Path) -> None:
    from costmodels.learnable.family import WEIGHTS

    with pytest.raises(IrgraphError, match="not a model of a device's own measurements"):
        load_own(WEIGHTS / "gemm.safetensors")
    with pytest.raises(IrgraphError, match="cannot read weights"):
        load_own(tmp_path / "none.safetensors")


def test_a_prediction_takes_the_device_own_model(tmp_path: Path) -> None:
    path = tmp_path / "own.safetensors"
    save_own(_constant(4.0), path)
    graph = parse(MODEL)
    plain, own = (predict(graph, weights=w) for w in ((), [str(path)]))
    times = [[k.time for op in graph.ops for k in p.priced.of(op)] for p in (plain, own)]
    assert times[1] == pytest.approx([4 * times[0][0], times[0][1]])


def _sheet(path: Path) -> None:
    figure = {"datasheet": 10.0, "measured": 10.0}
    sheet = {
        "name": "my-cpu",
        "architecture": "cpu",
        "sms": 2,
        "memory_bytes": 2**34,
        "l2_bytes": 2**20,
        "clock_mhz": {"datasheet": 1000.0},
        "fp32_gflops": {"datasheet": 50.0},
        "dram_gbs": figure,
        "pinned_gbs": figure,
    }
    path.write_text(json.dumps(sheet))


RANGES = {"rows": (10, 2000), "dim": (8, 64), "batch": (16, 256), "lookups": (1, 8),
          "tables": (1, 1)}  # fmt: skip
OPS = ("embedding_bag_sum", "embedding_bag_max", "embedding")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Sweep over small tables, in a folder with the sheet of a device."""
    makers = {op: sweeps()["embedding"].ops[op] for op in OPS}
    tables = replace(sweeps()["embedding"], ops=makers, ranges=RANGES, needed=(), indices=("",))
    monkeypatch.setitem(sweeps(), "embedding", tables)
    monkeypatch.chdir(tmp_path)
    _sheet(tmp_path / "my.json")


TRAIN = "train embedding --data m.jsonl --device my.json -o own.safetensors --steps 500"


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_what_was_measured_is_trained_on_and_used(capsys: pytest.CaptureFixture[str]) -> None:
    Path("model.ir").write_text(MODEL)
    assert main(["measure", "embedding", "--device", "cpu", "--count", "40", "-o", "m.jsonl"]) == 0
    assert main(TRAIN.split()) == 0
    assert "held-out rows" in capsys.readouterr().err
    assert main(["predict", "model.ir", "--device", "my.json", "--weights", "own.safetensors"]) == 0
    assert "learned" in capsys.readouterr().out
    assert main(["predict", "model.ir", "--device", "v100", "--weights", "own.safetensors"]) == 2
    assert "trained for my-cpu" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_training_finds_how_a_device_differs_from_the_formula() -> None:
    """Times follow a law that no formula here has; the largest of a bag takes twice as long."""
    with Path("m.jsonl").open("w") as file:
        file.write('{"format":2,"device":"cpu","name":"c"}\n')
        for case in sweeps()["embedding"].plan("embedding", 80):
            moved = case.sizes["batch"] * case.sizes["lookups"] * case.sizes["dim"]
            time = (1.0 + moved / 500) * (2 if case.op.endswith("max") else 1)
            timing = {"key": case.key, "op_us": time, "spread_us": 0.1, "kernel_us": None}
            file.write(json.dumps({**asdict(case), **timing}) + "\n")
    assert main(TRAIN.split()) == 0
    made = load_own("own.safetensors").made
    assert made["model_pct"]["median"] < 20 < made["formula_pct"]["median"]
    first = Path("own.safetensors").read_bytes()
    assert main(TRAIN.split()) == 0
    assert Path("own.safetensors").read_bytes() == first


def test_training_on_a_file_needs_the_devices_sheet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"format":2,"device":"cuda","name":"card"}\n')
    assert main(["train", "embedding", "--data", str(path)]) == 2
    assert "the sheet of the measured device is not given" in capsys.readouterr().err
    assert main(["train", "embedding", "--data", str(path), "--device", "v100"]) == 2
    said = capsys.readouterr().err
    assert "0 usable measurements of 'embedding': at least 20" in said
    assert "the file has measurements of: nothing" in said


def test_equal_ops_of_a_call_share_its_time(tmp_path: Path) -> None:
    _sheet(tmp_path / "my.json")
    sizes = {"rows": 50, "dim": 8, "batch": 16, "lookups": 2, "tables": 3}
    case = Case("embedding", "embedding_bag_mean", "f32", sizes, "zipf:1.3")
    row = {**asdict(case), "key": case.key, "op_us": 30.0, "spread_us": 0.1, "kernel_us": None}
    failed = {**row, "op_us": None, "error": "needs more memory"}
    path = tmp_path / "m.jsonl"
    lines = ({"format": 2, "device": "cpu", "name": "c"}, row, failed)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (found,) = samples(path, "embedding", load_device(tmp_path / "my.json"))
    assert found.time == 10.0
    assert op_key(found.op) == "aten.embedding_bag mode=1"
    assert "zipf:1.3" in found.kernels[0].formula


def test_on_a_gpu_only_kernel_times_count(tmp_path: Path) -> None:
    _sheet(tmp_path / "my.json")
    case = Case("softmax", "softmax", "f32", {"rows": 8, "cols": 8})
    row = {**asdict(case), "key": case.key, "op_us": 30.0, "spread_us": 0.1, "kernel_us": None}
    rows = ({**row, "kernel_us": 4.0, "kernel_spread_us": 0.1}, row)
    path = tmp_path / "m.jsonl"
    lines = ({"format": 2, "device": "cuda", "name": "c"}, *rows)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = samples(path, "softmax", load_device(tmp_path / "my.json"))
    assert [sample.time for sample in found] == [4.0]
