"""opt, predict, diff and the lists: the main job by its commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest

from tests.cli.conftest import Ran

Run = Callable[..., Ran]
DLRM = str(resources.files("costmodels.evaluate") / "data" / "dlrm_default.ir")


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from irgraph.cli.main import main

    path = tmp_path_factory.mktemp("models") / "fused.ir"
    assert main(["opt", "-q", "--pass", "fuse-embedding", DLRM, "-o", str(path)]) == 0
    return path


def test_opt_prints_the_new_model_and_reports_beside_it(run: Run) -> None:
    ran = run("opt", "--pass", "fuse-embedding", DLRM)
    assert ran.code == 0
    assert ran.out.startswith('model "')
    assert ran.out.count("irgraph.batched_embedding(") == 1
    assert "8 matches" in ran.err
    assert "legal:" in ran.err


def test_opt_writes_whole_files_or_none(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "out.ir"
    target.write_text("precious")
    assert run("opt", "-e", "expect 7 aten.embedding_bag", DLRM, "-o", target).code == 1
    assert target.read_text() == "precious"
    assert run("opt", "-e", "expect 8 aten.embedding_bag", DLRM, "-o", target).code == 0
    assert target.read_text().startswith("model")


def test_steps_apply_in_the_order_of_the_command_line(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "after.irg"
    script.write_text("expect 1 irgraph.batched_embedding\n")
    before, fuse = ("-e", "expect 8 aten.embedding_bag"), ("--pass", "fuse-embedding")
    assert run("opt", *before, *fuse, "-s", script, DLRM).code == 0
    assert run("opt", *fuse, *before, "-s", script, DLRM).code == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--pass", "fuse-embeding"), 2, "did you mean 'fuse-embedding'?"),
        (("--pass", "fuse-embedding(leest=3)"), 2, "did you mean 'least'?"),
        (("-e", "fuze many aten.relu(%x)"), 4, "-e:1:1"),
        (("-e", "remove many aten.rellu(%x) using %x for %x"), 4, "aten.relu"),
        (("-s", "nowhere.irg"), 4, "nowhere.irg"),
        (("--dim", "Q=3"), 2, "no dimension 'Q'"),
        (("--dim", "B=many"), 2, "give a whole number"),
        (("--dim", "B=1" + 23 * "0"), 2, "a size has at most 18 digits"),
        (("--dim", "B=9000000000000000"), 2, "1 PiB is the most"),
    ],
)
def test_what_is_wrong_with_a_script_is_said_with_its_place(
    run: Run, arguments: tuple[str, ...], code: int, message: str
) -> None:
    ran = run("opt", *arguments, DLRM)
    assert ran.code == code
    assert message in ran.err
    assert ran.out == ""


def test_predict_explains_its_step_time(run: Run, fused: Path, tmp_path: Path) -> None:
    timeline = tmp_path / "t.json"
    ran = run("predict", fused, "--json", "--timeline", timeline, "--measured", "8.7ms")
    summary = json.loads(ran.out)
    assert sum(summary["critical_path_us"].values()) == pytest.approx(summary["step_time_us"])
    shares = {by: share for by, share in summary["coverage"].items() if by != "outside range"}
    assert sum(shares.values()) == pytest.approx(1.0)
    assert summary["measured_us"] == 8700.0
    assert json.loads(timeline.read_text())["traceEvents"]


def test_predict_prints_predicted_beside_measured(run: Run, fused: Path) -> None:
    out = run("predict", fused, "--measured", "8.7ms").out
    assert "Measured: 8.700 ms; the prediction is " in out
    figures = run("predict", fused, "--measured", "8.7ms", "--show", "figures").out
    assert "8.700 ms, error" in figures


def test_a_limit_turns_the_answer_into_an_exit_code(run: Run, fused: Path) -> None:
    assert run("predict", fused, "--limit", "step.time=1s").code == 0
    ran = run("predict", fused, "--limit", "step.time=1ms", "--limit", "gpu.active=1us")
    assert ran.code == 1
    assert "step.time is" in ran.err and "gpu.active is" in ran.err


def test_a_larger_batch_takes_longer(run: Run, fused: Path) -> None:
    times = [
        json.loads(run("predict", fused, "--json", "--dim", f"B={batch}").out)["step_time_us"]
        for batch in (1024, 2048, 8192)
    ]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--device", "v10"), "did you mean 'V100-SXM2-16GB'?"),
        (("--host", "v10"), "did you mean 'v100'?"),
        (("--mode", "papr"), "did you mean 'paper'?"),
        (("--software", "torch-3"), "did you mean 'torch-2'?"),
        (("--accounting", "papers"), "did you mean 'paper'?"),
    ],
)
def test_unknown_names_get_a_near_word(
    run: Run, fused: Path, arguments: tuple[str, ...], message: str
) -> None:
    ran = run("predict", fused, *arguments)
    assert ran.code in (2, 4)
    assert message in ran.err


def test_diff_says_what_changed_and_what_it_is_worth(run: Run, fused: Path) -> None:
    result = json.loads(run("diff", DLRM, fused, "--json").out)
    assert result["ops"]["aten.embedding_bag"] == [8, 0]
    assert result["ops"]["irgraph.batched_embedding_sgd"] == [0, 1]
    before, after = result["figures"]["step_time_us"]
    assert result["step_time_change_us"] == pytest.approx(after - before)
    assert "total change" in run("diff", DLRM, fused).out


def test_the_lists_list(run: Run) -> None:
    assert "fuse-embedding" in run("passes").out
    assert "pass fuse-embedding" in run("passes", "fuse-embedding").out
    assert "did you mean 'fuse-embedding'?" in run("passes", "fuse-embeding").err
    names = {row["name"] for row in json.loads(run("devices", "--json").out)}
    assert {"V100-SXM2-16GB", "H200"} <= names
    assert json.loads(run("hosts", "--json").out)


def test_evaluate_knows_what_it_can(run: Run) -> None:
    ran = run("evaluate", "dlrm-v10")
    assert (ran.code, "did you mean 'dlrm-v100'?" in ran.err) == (2, True)


def test_a_host_of_another_time_than_the_device_is_warned_of(run: Run, fused: Path) -> None:
    old = ("--host", "v100")
    warned = run("predict", fused, "--device", "h100-80gb-hbm3", *old).out
    assert "warning: " in warned
    assert "measured with a volta GPU, but this device is hopper" in " ".join(warned.split())
    assert "warning: " not in run("predict", fused, "--device", "v100", *old).out
    assert json.loads(run("predict", fused, "--device", "t4", *old, "--json").out)["warnings"]
    assert "measured with a volta GPU" in run("diff", fused, fused, "--device", "a100", *old).out
