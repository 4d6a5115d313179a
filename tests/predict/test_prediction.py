"""What a prediction and a difference of two say beside their times."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from costmodels.evaluate.dlrm_v100 import dlrm
from irgraph.ir.op import Op
from irgraph.predict.difference import Difference
from irgraph.predict.limits import broken_limits
from irgraph.predict.prediction import Prediction, predict
from irgraph.predict.tables import difference_tables, prediction_tables
from irgraph.report.console import bytes_text
from irgraph.text import parse
from tests.predict.test_target import REDUCED


@pytest.fixture(scope="module")
def prediction() -> Prediction:
    return predict(dlrm("DLRM_default", 2048))


def shown(tables: list[Table]) -> str:
    console = Console(file=io.StringIO(), width=160)
    for table in tables:
        console.print(table)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def test_a_summary_has_interval_memory_and_what_ifs(prediction: Prediction) -> None:
    summary = prediction.summary()
    low, high = summary["step_time_interval_us"]
    assert low < summary["step_time_us"] < high
    assert summary["memory"]["fits"]
    assert summary["memory"]["peak_bytes"] == sum(summary["memory"]["by_kind_bytes"].values())
    saved = [row["saved_us"] for row in summary["sensitivity"]["ops"]]
    assert len(saved) == 10
    assert saved == sorted(saved, reverse=True)
    assert saved[0] > 0.0
    names = {row["name"] for row in summary["sensitivity"]["groups"]}
    assert {"T1", "latency", "gemm"} <= names
    total = sum(summary["critical_modules_us"].values())
    assert total == pytest.approx(summary["step_time_us"])


def test_a_prediction_prints_them(prediction: Prediction) -> None:
    text = shown(prediction_tables(prediction.summary()))
    for words in ("90 % interval", "fits in 16.00 GiB", "2x faster", "host between operators (T1)"):
        assert words in text


def test_a_step_too_large_for_its_device_is_said_so() -> None:
    graph = dlrm("DLRM_default", 2048)
    summary = predict(graph, "a100").summary()
    summary["memory"]["fits"] = False
    assert "DOES NOT FIT in" in shown(prediction_tables(summary))


def test_a_difference_has_an_interval_of_its_own(prediction: Prediction) -> None:
    smaller = predict(dlrm("DLRM_default", 1024))
    result = Difference(prediction, smaller).summary()
    low, high = result["step_time_change_interval_us"]
    assert low < result["step_time_change_us"] < high
    # what both have in common errs the same way in both
    assert high - low < prediction.spread + smaller.spread
    before, after = result["memory_peak_bytes"]
    assert after < before
    assert "peak memory" in shown(difference_tables(result))


def test_a_step_compared_with_itself_has_not_changed(prediction: Prediction) -> None:
    assert Difference(prediction, prediction).interval == (0.0, 0.0)


def test_bytes_are_shown_in_a_unit_that_suits() -> None:
    assert bytes_text(3 * 2**20) == "3.0 MiB"
    assert bytes_text(-3 * 2**30) == "-3.00 GiB"


def test_a_host_table_that_lacks_a_type_of_overhead_is_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "half.json"
    path.write_text('{"format": 1, "name": "half", "T1": {"mean": 5.0}, "T4": {}, "ops": {}}')
    found = predict(dlrm("DLRM_default", 512), host=str(path))
    shared = predict(dlrm("DLRM_default", 512), host="h100-torch-2.11")
    lost = "half has no T2, T3, T5, times of calls without launches, T4: those of h100-torch-2.11"
    assert lost in found.warnings[0]
    assert "WARNING" in shown(prediction_tables(found.summary()))
    assert found.path.by_cause()["T2"] > 0.5 * shared.path.by_cause()["T2"]
    assert len(shared.warnings) == 1
    assert "was measured with a hopper GPU, but this device is volta" in shared.warnings[0]


def test_products_in_tf32_that_a_device_has_no_units_for_are_warned_of() -> None:
    graph = dlrm("DLRM_default", 512)
    rounded = replace(graph, ops=tuple(map(in_tf32, graph.ops)))
    (note,) = predict(graph).warnings
    told, same_note = predict(rounded).warnings
    assert note == same_note
    lacking = "V100-SXM2-16GB has no matrix units for tf32 (tf32_gflops)"
    count = sum(op.name == "aten.linear" for op in graph.walk())
    assert told == f"{lacking}: {count} products in tf32 priced as f32"
    assert predict(rounded).step_time == predict(graph).step_time
    with_units = predict(rounded, device="a100")
    assert not any("tf32" in line for line in with_units.warnings)
    assert with_units.timeline.active_time < predict(graph, device="a100").timeline.active_time


def in_tf32(op: Op) -> Op:
    """Return a linear layer that multiplies in tf32, or the op as it is."""
    name = "irgraph.linear_tf32" if op.name == "aten.linear" else op.name
    return replace(op, name=name, body=tuple(map(in_tf32, op.body)))


@pytest.mark.parametrize("name", ["DLRM_default", "DLRM_MLPerf"])
def test_a_larger_batch_never_makes_a_step_shorter(name: str) -> None:
    times = [predict(dlrm(name, batch)).step_time for batch in (64, 128, 256, 512, 1024)]
    assert times == sorted(times)


def test_what_ifs_of_ops_alike_share_a_row() -> None:
    ops = "".join(
        f'%y{n} = aten.relu(%x) : f32[4096, 4096] in $c{n} from "t#{n}"\n' for n in range(8)
    )
    text = 'model "m" { format = 1 }\ndevice @gpu0 "v100"\ninput %x : f32[4096, 4096] in $b1\n\n'
    summary = predict(parse(text + ops)).summary()
    counts = [row.get("count", 1) for row in summary["sensitivity"]["ops"]]
    assert sum(counts) == 8
    assert len(counts) <= 2  # the last one alone ends the step
    assert f"aten.relu, one of {max(counts)} alike" in shown(prediction_tables(summary))


def test_collectives_are_told_with_ranks_and_curve_or_with_what_lacks() -> None:
    graph = parse(REDUCED)
    known, unknown = predict(graph, ranks=4), predict(graph)
    (line,) = known.summary()["collectives"]
    assert line.startswith("1 all_reduce, 171.1 us +- 7.0 us: 4 ranks on one machine, as given")
    assert known.summary()["coverage"] == {"heuristic": 1.0}
    assert "kernel collective" in known.path.by_cause()
    assert "│ collectives " in shown(prediction_tables(known.summary()))
    warning, _ = unknown.summary()["warnings"]
    assert "nothing says how many ranks take part" in warning
    assert unknown.summary()["coverage"] == {"none": 1.0, "outside range": 1.0}
    told = shown(difference_tables(Difference(known, known).summary()))
    assert "collectives: 1 all_reduce" in told


def test_the_peak_that_is_printed_is_the_one_that_limits_hold(prediction: Prediction) -> None:
    summary = prediction.summary()
    memory = summary["memory"]
    assert memory["needed_bytes"] == memory["peak_bytes"] + memory["workspace_and_context_bytes"]
    text = shown(prediction_tables(summary))
    needed = bytes_text(memory["needed_bytes"])
    assert f"{needed}: fits in 16.00 GiB" in text
    assert f"{bytes_text(memory['peak_bytes'])} tensors (" in text
    assert "520.1 MiB assumed for workspace" in text
    below = f"{memory['needed_bytes'] // 2**20}MiB"
    (line,) = broken_limits([f"memory.peak={below}"], summary, None)
    assert line.startswith(f"memory.peak is {needed} (")
    assert not broken_limits(
        [f"memory.peak={memory['needed_bytes'] // 2**20 + 1}MiB"], summary, None
    )
