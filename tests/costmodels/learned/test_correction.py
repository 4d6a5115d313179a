"""A model of one device, from a file of measurements to a prediction."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import asdict, replace

from costmodels.benchmarks.bench import Case
from costmodels.devices.library import load_device
from costmodels.evaluate.timed.swept import SHIPPED
from costmodels.families import sweeps
from costmodels.learnable.call_inputs import InputLayout
from costmodels.learned.correction import (
    FADING,
    OwnModel,
    correct_kernels,
    form_of_priced,
    load_own,
    save_own,
)
from costmodels.learned.correctors import corrector, shipped_corrections
from costmodels.learned.query_batch import QueryBatch
from costmodels.measure.rows import read_rows
from costmodels.training.correction import samples
from irgraph.cli.main import main
from irgraph.diagnostics import IrgraphError
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.predict.prediction import predict
from irgraph.predict.variants import predict_variants
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


CARD = "V100-SXM2-16GB"


def _constant(
    factor: float, op: Op = LOOKUP, device: str = CARD, on: str = "v100@1297"
) -> OwnModel:
    """Return a model that says the same factor of calls of one form, measured at one size."""
    law = kernels(op, machine(on))
    form = form_of_priced(op, law, machine(on))
    assert form is not None
    layout = InputLayout(len(form.sizes), form.words)
    numbers = (sum(k.time for k in law), *form.sizes, *(form.product or ()))
    inputs = layout.matrix(form.words, np.array(numbers)[:, None], len(form.sizes), 80)[:, 0]
    layers = (
        (np.zeros((2, 1, len(inputs)), np.float32), np.full((2, 1), np.log(factor), np.float32)),
    )
    mean, scale = np.zeros_like(inputs), np.ones_like(inputs)
    low = inputs[None, : layout.ranged]
    width, trust = np.array([0.1], np.float32), np.ones(1, np.float32)
    return OwnModel(
        "embedding", device, (form.key,), layout, layers, mean, scale, low, low, width, trust,
        {"rows": 9},
    )  # fmt: skip


def _corrected(model: OwnModel, op: Op) -> tuple[Kernel, ...]:
    """Return the kernels of an op after a model's correction."""
    before = kernels(op, machine())
    form = form_of_priced(op, before, machine())
    assert form is not None
    return correct_kernels(before, form, model, machine(), QueryBatch())


def test_a_factor_scales_time_and_interval_and_says_so() -> None:
    before = kernels(LOOKUP, machine())
    (after,) = _corrected(_constant(2.0), LOOKUP)
    assert after.time == pytest.approx(2 * before[0].time)
    assert after.spread == pytest.approx(after.time * np.sinh(0.1))
    assert after.by == "learned" and not after.outside
    assert f"9 measurements of {CARD} (embedding_bag f32 dense 4)" in after.formula


def _table(rows: int) -> Op:
    return call("aten.embedding_bag", tensor("w", rows, 16), *LOOKUP.operands[1:], out=(64, 16))


def test_beyond_what_was_measured_a_correction_fades_to_the_formula() -> None:
    """The size of the table is doubled four times; its law does not change."""
    factors = []
    for doublings in range(5):
        op = _table(500 << doublings)
        (before,), (after,) = kernels(op, machine()), _corrected(_constant(2.0), op)
        factors.append(after.time / before.time)
        assert after.outside == (doublings > 0)
        assert after.spread > 0.1 * before.time
    expected = [2 ** max(1 - doublings / FADING, 0) for doublings in range(5)]
    assert factors == pytest.approx(expected, rel=1e-3)


def test_the_kernels_of_a_call_share_its_factor_and_its_interval() -> None:
    op = call("aten.mse_loss", tensor("x", 512, 640), tensor("y", 512, 640), out=())
    h100 = machine("h100")
    law = kernels(op, h100)
    assert len(law) > 1
    correct = corrector((), load_device("h100"), "torch-2")
    assert correct is not None
    after = correct(op, law, h100)
    factors = [new.time / old.time for new, old in zip(after, law, strict=True)]
    assert factors == pytest.approx([factors[0]] * len(law))
    form = form_of_priced(op, law, h100)
    assert form is not None
    model = shipped_corrections("h100-80gb-hbm3")[form.key]
    numbers = np.array([sum(k.time for k in law), *form.sizes])[:, None]
    expected = float(model.factors(form, numbers, 132).spread[0])
    total = sum(k.spread**2 for k in after) ** 0.5
    assert total == pytest.approx(expected * sum(k.time for k in after))


def test_a_form_that_was_not_trained_on_has_the_formula() -> None:
    """A maximum of each bag runs another kernel than a sum."""
    largest = replace(LOOKUP, attributes={"mode": 2})
    correct = corrector((), load_device("h100"), "torch-2")
    law = kernels(largest, machine("h100"))
    strided = call("aten.relu", replace(tensor("x", 64, 64), strides=(4096, 3)), out=(64, 64))
    assert correct is not None
    assert correct(largest, law, machine("h100")) != law
    plain = kernels(strided, machine("h100"))
    assert correct(strided, plain, machine("h100")) == plain


def test_twins_of_a_swept_card_borrow_its_corrections_and_say_so() -> None:
    op = call("aten.relu", tensor("x", 640, 480), out=(640, 480))
    for name, borrowed in (("h100", False), ("h200", True)):
        law = kernels(op, machine(name))
        correct = corrector((), load_device(name), "torch-2")
        assert correct is not None
        (after,) = correct(op, law, machine(name))
        assert after.by == "learned" and after.outside is borrowed
    assert corrector((), load_device("a100"), "torch-2") is None
    assert corrector((), load_device("h100"), "torch-1.8") is None


def test_a_file_holds_all_of_a_model(tmp_path: Path) -> None:
    path = tmp_path / "own.safetensors"
    model = _constant(3.0)
    save_own(model, path)
    read = load_own(path)
    assert (read.family, read.device, read.keys) == (model.family, model.device, model.keys)
    assert _corrected(read, LOOKUP) == _corrected(model, LOOKUP)


def test_a_model_of_another_device_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.safetensors"
    save_own(_constant(1.0, device="T4"), path)
    with pytest.raises(IrgraphError, match="trained for T4, not for V100-SXM2-16GB"):
        corrector([str(path)], load_device("v100"), "torch-2")


def test_other_files_are_no_such_models(tmp_path: Path) -> None:
    from costmodels.learnable.family import WEIGHTS

    with pytest.raises(IrgraphError, match="not a model of a device's own measurements"):
        load_own(WEIGHTS / "gemm.safetensors")
    with pytest.raises(IrgraphError, match="cannot read weights"):
        load_own(tmp_path / "none.safetensors")


def test_a_prediction_takes_the_device_own_model(tmp_path: Path) -> None:
    path = tmp_path / "own.safetensors"
    save_own(_constant(4.0, on="v100"), path)
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
    assert (found.low, found.high) == pytest.approx((10.0, 10.0))
    assert found.form.key == "embedding_bag f32 dense 4 mode=1"
    assert found.form.sizes[-1] == pytest.approx(2.3)


def test_on_a_gpu_only_kernel_times_count(tmp_path: Path) -> None:
    _sheet(tmp_path / "my.json")
    case = Case("softmax", "softmax", "f32", {"rows": 8, "cols": 8})
    row = {**asdict(case), "key": case.key, "op_us": 30.0, "spread_us": 0.1, "kernel_us": None}
    rows = ({**row, "kernel_us": 4.0, "kernel_spread_us": 0.1}, row)
    path = tmp_path / "m.jsonl"
    lines = ({"format": 2, "device": "cuda", "name": "c"}, *rows)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = samples(path, "softmax", load_device(tmp_path / "my.json"))
    assert [sample.high for sample in found] == pytest.approx([4.0])


def test_what_ships_was_trained_on_the_measurements_that_ship() -> None:
    measurements = SHIPPED / "h100-80gb-hbm3" / "kernels.jsonl.gz"
    digest = hashlib.sha256(measurements.read_bytes()).hexdigest()
    models = set(map(id, shipped_corrections("h100-80gb-hbm3").values()))
    assert len(models) == len({row["family"] for row in read_rows(measurements)[1]})
    for model in shipped_corrections("h100-80gb-hbm3").values():
        assert model.made["data_sha256"] == digest
        assert model.made["model_pct"]["mape"] < model.made["formula_pct"]["mape"]


def test_a_sweep_over_sizes_has_the_corrections_of_single_predictions() -> None:
    sizes = [{"B": size} for size in (1, 37, 512, 4096, 100_000)]
    graph = parse(RESIZED)
    many = predict_variants(graph, ["h100"], sizes)
    alone = [predict(graph, "h100", dims=dims, measured=False).step_time for dims in sizes]
    assert many.step_time[0].tolist() == alone


RESIZED = """model "m" { format = 1  dims = {B = 64} }

device @gpu0 "h100"
input %x : f32[B, 96] in $x
param %w : f32[96, 512] in $w

%y = aten.mm(%x, %w) : f32[B, 512] in $y
%z = aten.relu(%y) : f32[B, 512] in $z
%s = aten._softmax(%z, dim = -1, half_to_float = false) : f32[B, 512] in $s
%t = aten.sum(%s, dim = [0]) : f32[512] in $t
"""


@pytest.mark.parametrize("name", ["aten.clone", "aten._to_copy"])
@pytest.mark.parametrize("layout", ["1, 8", "12, 1"])
def test_a_contiguous_tensor_is_copied_into_another_layout(name: str, layout: str) -> None:
    dtype = "f32" if name == "aten.clone" else "f16"
    graph = parse(
        'model "copies" { format = 2 }\n\ndevice @gpu0 "h100-80gb-hbm3"\n'
        "input %x : f32[8, 6] in $x\n\n"
        f"%y = {name}(%x) : {dtype}[8, 6; {layout}] in $y\nreturn %y\n"
    )
    assert predict(graph, device="h100").timeline.active_time > 0
