"""Commands that read traces."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.capture.kineto.builder import START, events, text, write

Run = Callable[..., Any]

MODEL = """model "m" { format = 1 }

device @gpu0 "v100"
input %x : f32[64, 64] in $x

%y = aten.relu(%x) : f32[64, 64] in $y
"""


def test_replay_prints_both_times(run: Run, tmp_path: Path) -> None:
    result = run("replay", write(tmp_path), "--json")
    assert result.code == 0
    found = json.loads(result.out)
    assert [step["step"] for step in found["steps"]] == [5, 6, 7]
    assert abs(found["mean_error"]) < 1e-4
    table = run("replay", write(tmp_path))
    assert "simulated ms" in table.out and "+0.00%" in table.out


def test_repaired_trace_exits_with_three(run: Run, tmp_path: Path) -> None:
    whole = text(events())
    path = tmp_path / "cut.json"
    path.write_text(whole[: int(len(whole) * 0.9)])
    result = run("replay", path)
    assert result.code == 3
    assert "K01" in result.err
    assert run("replay", path, "--strict").code == 4


def test_host_only_trace_cannot_be_replayed(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path, lambda found: [e for e in found if e["cat"] != "kernel"])
    result = run("replay", path)
    assert (result.code, "no device events to replay" in result.err) == (4, True)


def test_replay_limit(run: Run, tmp_path: Path) -> None:
    one = write(tmp_path)

    def slower(found: list[dict[str, Any]]) -> None:
        for event in found:
            event["ts"] = START + (event["ts"] - START) * 2
            event["dur"] *= 2

    other = write(tmp_path, slower, "other.json")
    assert run("replay", one, "--limit", "1").code == 0
    result = run("replay", one, "--overheads", other, "--no-match-speed", "--limit", "1")
    assert result.code == 1
    assert "over the limit" in result.err


def test_replay_timeline(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "timeline.json"
    assert run("replay", write(tmp_path), "--timeline", out).code == 0
    assert processes(out) >= {"measured: host", "measured: gpu0", "simulated: gpu0"}
    assert set(json.loads(out.read_text())["otherData"]) == {"measured", "simulated"}


def test_a_recorded_step_stands_beside_the_prediction(run: Run, tmp_path: Path) -> None:
    model, out = tmp_path / "m.ir", tmp_path / "timeline.json"
    model.write_text(MODEL)
    result = run("predict", model, "--recorded", write(tmp_path), "--timeline", out)
    assert result.code == 0
    assert "Measured: " in result.out
    assert processes(out) >= {"measured: gpu0", "predicted: critical path", "predicted: gpu0"}


def test_a_trace_without_a_step_cannot_stand_beside_a_prediction(run: Run, tmp_path: Path) -> None:
    model = tmp_path / "m.ir"
    model.write_text(MODEL)
    path = tmp_path / "none.json"
    path.write_text('{"traceEvents": []}')
    result = run("predict", model, "--recorded", path)
    assert result.code == 4


def test_two_models_stand_side_by_side(run: Run, tmp_path: Path) -> None:
    model, out = tmp_path / "m.ir", tmp_path / "timeline.json"
    model.write_text(MODEL)
    assert run("diff", model, model, "--timeline", out).code == 0
    assert processes(out) >= {"before: gpu0", "after: gpu0", "after: critical path"}
    refused = run("diff", model, model, "--device", "none", "--timeline", out)
    assert (refused.code, "--timeline needs a device" in refused.err) == (2, True)


def processes(path: Path) -> set[str]:
    found = json.loads(path.read_text())["traceEvents"]
    return {e["args"]["name"] for e in found if e["name"] == "process_name"}


def test_overheads_are_saved_joined_and_compared(run: Run, tmp_path: Path) -> None:
    table = tmp_path / "host.json"
    assert run("overheads", write(tmp_path), "-o", table, "--name", "mine").code == 0
    assert json.loads(table.read_text())["name"] == "mine"
    joined = run("overheads", table, table, "--json")
    assert json.loads(joined.out)["ops"]["aten.linear"]["T2"]["count"] == 6
    compared = run("overheads", table, "--compare", "v100")
    assert compared.code == 0
    assert "other us" in compared.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--profiler", "much"), "give two numbers of at least 0 such as 2,4"),
        (("--profiler", "nan,4"), "give two numbers of at least 0 such as 2,4"),
        (("--profiler", "2,inf"), "give two numbers of at least 0 such as 2,4"),
        (("--profiler=-1,4",), "give two numbers of at least 0 such as 2,4"),
        (("--outliers", "medain"), "did you mean 'median'"),
    ],
)
def test_wrong_options(run: Run, tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    result = run("overheads", write(tmp_path), *options)
    assert result.code == 2
    assert message in result.err


def test_samples_that_the_profilers_cost_uses_up_are_told(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path)
    told = run("overheads", path, "--profiler", "1000,1000").err
    assert "counted as 0: 15 of 15 of T1" in told
    assert "12 of 12 of T4" in told
    assert "counted as 0" not in run("overheads", path, "--profiler", "0,0").err


def test_quantiles_that_no_table_knows_are_dashes(run: Run, tmp_path: Path) -> None:
    table = tmp_path / "host.json"
    run("overheads", write(tmp_path), "-o", table)
    rows = [line for line in run("overheads", table, table).out.splitlines() if "linear" in line]
    assert rows and all(row.count("│ - │") or row.count("  - │") == 2 for row in rows)
    alone = [line for line in run("overheads", table).out.splitlines() if "linear" in line]
    assert alone and not any("- │" in row for row in alone)


def test_predict_takes_an_extracted_table(run: Run, tmp_path: Path) -> None:
    table = tmp_path / "host.json"
    run("overheads", write(tmp_path), "-o", table)
    from irgraph.overheads import load_host

    assert load_host(str(table)).file.ops["aten.relu"].t2 is not None


def test_analyze_prints_tables_and_json(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path)
    tables = run("analyze", path)
    assert tables.code == 0
    for title in ("steps", "device work by operator", "dominating kernels", "device idle"):
        assert title in tables.out
    found = json.loads(run("analyze", path, "--json").out)
    assert found["steps"][0]["step_us"] == 1000.0
    assert found["breakdown"]["op"]["aten::linear"]["us"] == 100.0
    assert found["health"][0][0]["code"] == "K19"


def test_roofline_of_a_trace(run: Run, tmp_path: Path) -> None:
    """Three steps, each with one product of [8, 16] and [16, 4] that takes 100 us."""

    def product(found: list[dict[str, Any]]) -> None:
        for event in found:
            event["name"] = event["name"].replace("aten::linear", "aten::mm")

    path = write(tmp_path, product, deviceProperties=[{"id": 0, "name": "Tesla V100-SXM2-16GB"}])
    result = run("roofline", path, "--json")
    found = json.loads(result.out)
    (row,) = found["shape"]
    assert (row["calls"], row["us"], row["gflop"]) == (1.0, 100.0, 2 * 8 * 16 * 4 / 1e9)
    assert row["mbyte"] == 4 * (8 * 16 + 16 * 4 + 8 * 4) / 1e6
    assert found["device"] == "V100-SXM2-16GB" and row["bound"] == "memory"
    tables = run("roofline", path)
    assert "device work by kernel" in tables.out and "limits: V100-SXM2-16GB" in tables.out
    assert "without a count of operations or bytes" in tables.out


def test_roofline_of_a_model_as_csv(run: Run, tmp_path: Path) -> None:
    model = tmp_path / "model.ir"
    model.write_text(MODEL)
    assert run("roofline", model, "--csv", tmp_path / "csv").code == 0
    with (tmp_path / "csv" / "op.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["op"], float(row["mbyte"]), row["gflop"]) == ("aten.relu", 0.032768, "")
    assert (tmp_path / "csv" / "shape.csv").read_text() == ""


def test_roofline_without_a_known_card_says_so(run: Run, tmp_path: Path) -> None:
    result = run("roofline", write(tmp_path))
    assert "name its sheet with --device" in result.out


def test_every_table_is_csv_too(run: Run, tmp_path: Path) -> None:
    """The files hold what the records of the library and ``--json`` do."""
    import irgraph

    path = write(tmp_path)
    assert run("analyze", path, "--csv", tmp_path / "a").code == 0
    tables = irgraph.analyze_traces(path).tables()
    assert {file.stem for file in (tmp_path / "a").iterdir()} == set(tables)
    for name, records in tables.items():
        with (tmp_path / "a" / f"{name}.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert rows == [{k: "" if v is None else str(v) for k, v in r.items()} for r in records]
    assert json.loads(run("analyze", path, "--json").out)["steps"] == tables["steps"]
    assert run("compare", path, path, "--csv", tmp_path / "b").out == ""
    assert run("replay", path, "--csv", tmp_path / "c").code == 0
    assert {file.name for file in (tmp_path / "b").iterdir()} == {"step.csv", "op.csv"}
    assert (tmp_path / "c" / "replay.csv").read_text().startswith("rank,step,measured_us")


def test_overheads_are_csv_too(run: Run, tmp_path: Path) -> None:
    """Every figure of the table that ``--json`` prints, those by shapes included."""
    path = write(tmp_path)
    assert (
        run("overheads", path, "--csv", tmp_path / "a", "--compare", "rtx2080ti-mlp-profiled").out
        == ""
    )
    with (tmp_path / "a" / "overheads.csv").open() as file:
        rows = {(r["kind"], r["operation"], r["shapes"]): r for r in csv.DictReader(file)}
    table = json.loads(run("overheads", path, "--json").out)
    assert float(rows["T1", "", ""]["mean_us"]) == table["T1"]["mean"]
    linear = table["ops"]["aten.linear"]
    (shapes,) = linear["shapes"]
    assert float(rows["T2", "aten.linear", ""]["mean_us"]) == linear["T2"]["mean"]
    by_shapes = rows["T2", "aten.linear", shapes]
    assert float(by_shapes["mean_us"]) == linear["shapes"][shapes]["T2"]["mean"]
    assert int(by_shapes["count"]) == linear["shapes"][shapes]["T2"]["count"]
    assert float(rows["T4", "kernel", ""]["other_mean_us"]) > 0
    assert rows["T2", "aten.linear", shapes]["other_mean_us"] == ""


def test_csv_into_a_file_is_refused(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path)
    result = run("analyze", path, "--csv", path)
    assert result.code == 2 and "--csv: File exists" in result.err


def test_ranks_are_merged_into_one_timeline(run: Run, tmp_path: Path) -> None:
    paths = [
        write(tmp_path, name=f"{rank}.json", distributedInfo={"rank": rank}) for rank in (2, 5)
    ]
    assert run("analyze", *paths, "--timeline", tmp_path / "merged.json").code == 0
    merged = json.loads((tmp_path / "merged.json").read_text())
    names = [e["args"]["name"] for e in merged["traceEvents"] if e["name"] == "process_name"]
    assert {name.partition(":")[0] for name in names} == {"rank 2", "rank 5"}
    kernels = [e for e in merged["traceEvents"] if e["name"] == "void aten_linear_kernel()"]
    assert len({e["pid"] for e in kernels}) == len(kernels) == 2


def test_health_report_on_request(run: Run, tmp_path: Path) -> None:
    assert "K19" in run("analyze", write(tmp_path), "--health").err


def test_lower_with_a_strange_trace_is_refused(run: Run, tmp_path: Path) -> None:
    recording = tmp_path / "et.json"
    node = {"id": 2, "name": "aten::conv2d", "parent": 1, "tid": 1}
    recording.write_text(json.dumps({"schema": "1.0.1", "pid": 1, "nodes": [node]}))
    result = run("lower", recording, "--kineto", write(tmp_path))
    assert result.code == 4
    assert "does not belong to the execution trace" in result.err


def test_lower_tells_what_it_repaired(run: Run, tmp_path: Path) -> None:
    whole = text(events())
    path = tmp_path / "cut.json"
    path.write_text(whole[: int(len(whole) * 0.9)])
    result = run("lower", path)
    assert result.code == 3
    assert "K01" in result.err
    assert result.out.startswith('model "cut"')


def test_anonymise_writes_copies(run: Run, tmp_path: Path) -> None:
    result = run("anonymise", write(tmp_path), "-o", tmp_path / "out")
    assert result.code == 0
    assert "kineto1.json.gz" in result.err
    assert run("replay", tmp_path / "out" / "kineto1.json.gz").code == 0


def test_record_needs_a_function(run: Run, tmp_path: Path) -> None:
    result = run("record", "nothing.py:f", "-o", tmp_path / "out")
    assert result.code == 2
    assert "no such file" in result.err


def test_a_table_says_which_devices_its_host_drove(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path)
    whole = json.loads(path.read_text())
    for card, architecture in (("Tesla V100-DGXS-32GB", "volta"), ("no such card", None)):
        whole["deviceProperties"] = [{"id": 0, "name": card}]
        path.write_text(json.dumps(whole))
        out = tmp_path / "host.json"
        assert run("overheads", path, "-o", out, "--name", "mine").code == 0
        assert json.loads(out.read_text()).get("architecture") == architecture
