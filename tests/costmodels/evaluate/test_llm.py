"""Published steps of language models: rows, decoders of few layers, and their extension."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from costmodels.evaluate.llm.case import LlmCase, RankLayout
from costmodels.evaluate.llm.evaluation import BASELINE, evaluate_llm, evaluate_selections
from costmodels.evaluate.llm.gains import gain_series, ordered_pairs
from costmodels.evaluate.llm.outcome import CaseOutcome
from costmodels.evaluate.llm.programs import micro_batch, sharded_step
from costmodels.evaluate.llm.rows import SLOW_NETWORK, card_of, training_case
from costmodels.evaluate.llm.shape import Shape
from costmodels.evaluate.llm.steps import StepPrediction, predict_case, rank_parameters
from costmodels.evaluate.llm.update import rank_work
from irgraph.ops.flops import step_flops
from irgraph.predict.prediction import predict

pytest.importorskip("torch")

SHAPE = Shape(layers=4, hidden=2048, ffn=8192, heads=16, kv_heads=16, vocab=8192, length=2048)
LLAMA = replace(SHAPE, is_gated=True, is_tied=False, fuses_qkv=False, kv_heads=4, ffn=4096)


def make_case(shape: Shape = SHAPE, **options: Any) -> LlmCase:
    fields: dict[str, Any] = {
        "source": "made up",
        "name": "case",
        "card": "a100-sxm4-80gb",
        "precision": "bf16",
        "shape": shape,
        "layout": RankLayout(),
        "batch": 4,
        "rounds": 2,
        "measured": 100.0,
    }
    return LlmCase(**{**fields, **options})


ROW = {
    "id": "X-1", "source": "made-up", "task": "pretrain", "status": "ok", "gpu": "A100-SXM4",
    "gpu_mem_gb": "40", "nodes": "1", "gpus": "8", "model": "gpt", "layers": "4", "hidden": "512",
    "ffn": "2048", "heads": "8", "kv_heads": "8", "vocab": "2048", "tied": "1",
    "mlp_matrices": "2", "experts": "", "seq_len": "512", "dp": "2", "zero": "1", "tp": "2",
    "sp": "1", "pp": "2", "vpp": "", "cp": "1", "micro_batch": "2", "global_batch": "16",
    "precision": "bf16", "recompute": "none", "compile": "", "step_ms": "50", "mem_gib": "9.5",
    "trust": "good", "consistent": "1",
}  # fmt: skip


def test_a_row_becomes_a_case() -> None:
    case = training_case(ROW)
    assert isinstance(case, LlmCase)
    assert case.card == "a100-sxm4-40gb"
    assert case.layout == RankLayout(2, 2, True, 2, 1, "zero1")
    assert (case.batch, case.rounds, case.measured, case.memory) == (2, 4, 50.0, 9.5)
    assert not case.shape.fuses_qkv


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"status": "oom"}, "failed or out of memory"),
        ({"trust": "as printed"}, "trust other than good"),
        ({"precision": "FP8"}, "float8"),
        ({"experts": "8"}, "experts"),
        ({"cp": "2"}, "context parallelism"),
        ({"heads": ""}, "sizes or layout not published"),
        ({"gpu": "MI300X"}, "cards without a sheet"),
        ({"gpus": "16"}, "layouts that contradict the number of cards or layers"),
        ({"source": "nanotron-sweep", "nodes": "2"}, SLOW_NETWORK),
    ],
)
def test_a_row_that_cannot_be_rebuilt_has_a_reason(changes: dict[str, str], reason: str) -> None:
    assert training_case({**ROW, **changes}) == reason


def test_cards() -> None:
    names = ("NVIDIA H100-SXM5-80GB", "80"), ("A100", ""), ("H100", "96"), ("GB200", "192")
    sheets = [card_of(*name) for name in names]
    assert sheets == ["h100-80gb-hbm3", "a100-sxm4-80gb", "h100-96gb", ""]


@pytest.mark.long
@pytest.mark.parametrize("shape", [SHAPE, LLAMA])
def test_counts_of_parameters_and_flop(shape: Shape) -> None:
    case = make_case(replace(shape, layers=2))
    graph = micro_batch(case, 2, None)
    parameters = sum(d.tensor.numel for d in graph.tensors if d.role == "param")
    assert parameters == pytest.approx(case.shape.parameters, rel=0.01)
    # torch counts all scores of attention, and two and a half passes of them in backward
    attention = 2 * 12 * case.shape.hidden * case.shape.length**2 * case.batch
    products = case.flop / case.rounds - attention / 2
    assert step_flops(graph)[0] == pytest.approx(products + attention * 7 / 6, rel=0.01)


@pytest.mark.long
def test_layers_extend_a_step() -> None:
    case = make_case(rounds=1)
    prediction = predict_case(case)
    complete = predict(micro_batch(case, SHAPE.layers, None), case.card, software=case.software)
    assert prediction.parts["passes"] == pytest.approx(complete.step_time / 1e3, rel=0.02)


@pytest.mark.long
def test_layers_extend_a_sharded_step() -> None:
    case = make_case(layout=RankLayout(16, sharding="fsdp"), rounds=1)
    prediction = predict_case(case)
    graph = sharded_step(case, SHAPE.layers, None)
    complete = predict(graph, case.card, software=case.software)
    assert prediction.time == pytest.approx(complete.step_time / 1e3, rel=0.03)
    assert complete.reserved_bytes is not None
    assert prediction.memory == pytest.approx(complete.reserved_bytes / 2**30, rel=0.1)


@pytest.mark.long
def test_stages_and_parts_of_layers() -> None:
    whole = predict_case(make_case(LLAMA))
    parts = predict_case(make_case(LLAMA, layout=RankLayout(1, 2, splits_sequence=True)))
    stages = predict_case(make_case(LLAMA, layout=RankLayout(1, stages=2), rounds=6))
    assert 0.5 < parts.parts["passes"] / whole.parts["passes"] < 1
    assert parts.memory < 0.7 * whole.memory
    # the bubble of 1F1B: one round of a stage without its head, beside six with it
    assert 0 < stages.parts["bubble"] < stages.parts["passes"] / 3


def test_shared_state_divides_the_update() -> None:
    layouts = RankLayout(8, sharding="replicated"), RankLayout(8, sharding="zero1")
    cases = [make_case(layout=layout) for layout in layouts]
    replicated, shared = (rank_work(case, 10**8) for case in cases)
    assert replicated.optimizer == pytest.approx(8 * shared.optimizer, rel=0.05)
    assert replicated.gathering == 0.0 < shared.gathering
    assert shared.reduction < replicated.reduction
    assert shared.transfer == shared.accumulation == 0.0
    assert rank_parameters(make_case(layout=RankLayout(1, 2))) == SHAPE.parameters // 2


@pytest.mark.long
def test_evaluates_tables(tmp_path: Path) -> None:
    rows = [ROW, {**ROW, "id": "X-2", "step_ms": "60"}, {**ROW, "id": "X-3", "status": "failed"}]
    with (tmp_path / "llm_training.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(ROW))
        writer.writeheader()
        writer.writerows(rows)
    for name in ("llm_foundry_mpt", "torchtitan"):
        (tmp_path / f"{name}.csv").write_text("gpu\n", encoding="utf-8")
    gains = "kind,before_id,after_id\nrounds,X-1,X-2\nnone,X-1,\n"
    (tmp_path / "llm_gains.csv").write_text(gains, encoding="utf-8")
    evaluation = evaluate_llm(folder=tmp_path)
    ((gain,),) = (series.points for series in evaluation.gains)
    assert (gain.measured, gain.predicted) == (pytest.approx(50 / 60), 1.0)
    assert evaluation.rejections == {"failed or out of memory": 1}
    (series,) = evaluation.step_series("parallelism")
    assert series.quantity == "ZeRO-1 + TP + PP"
    assert [point.measured for point in series.points] == [50.0, 60.0]
    # both are measured at another rate than the median of the two
    assert [p.others[BASELINE] for p in series.points] == pytest.approx([1 / 11, -1 / 11], rel=0.01)
    assert evaluation.memory_series()[0].points[0].measured == 9.5
    assert len(evaluation.render()) > 5
    steps = evaluation.as_json()["steps"]
    assert [step["measured_gib"] for step in steps] == [9.5, 9.5]


def test_order_of_layouts() -> None:
    def outcome(measured: float, predicted: float) -> CaseOutcome:
        case = make_case(measured=measured)
        return CaseOutcome(case, StepPrediction(predicted, (0.0, 0.0), 0.0, {}))

    outcomes = [outcome(100, 10), outcome(120, 11), outcome(140, 9), outcome(121, 50)]
    # 120 and 121 are too near each other; 140 is predicted fastest, 121 slower than 140
    assert ordered_pairs(outcomes) == {"made up": (5, 2)}


def test_a_gain_needs_both_steps(tmp_path: Path) -> None:
    for name, rows in (
        ("llm_training", [ROW, {**ROW, "id": "X-2"}]),
        ("llm_gains", [{"kind": "rounds", "before_id": "X-1", "after_id": "X-2"}]),
    ):
        with (tmp_path / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    assert gain_series(tmp_path, lambda case: None) == []


def test_rows_beyond_the_maximum_are_counted() -> None:
    assert evaluate_selections(["a", "b", "a"]).rejections == {"a": 2, "b": 1}
