"""What watches a pipeline, by its command line; diff, bisect and reduce."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest

from tests.cli.conftest import Ran

Run = Callable[..., Ran]
DLRM = str(resources.files("costmodels.evaluate") / "data" / "dlrm_default.ir")


def test_opt_shows_differences_times_and_statistics(run: Run) -> None:
    ran = run("opt", "-q", "--diff", "--stats", "--time-passes", "--pass", "fuse-epilogue", DLRM)
    assert ran.code == 0
    assert "+    5 irgraph.addmm_relu" in ran.err
    assert "nearest miss" in ran.err
    assert "time of steps" in ran.err
    assert ran.out.startswith("model")


def test_opt_prints_models_after_steps(run: Run) -> None:
    pipeline = ("--pass", "fuse-epilogue, drop-dropout")
    assert run("opt", "-q", "--print-after", *pipeline, DLRM).err.count("# after stage") == 2
    assert run("opt", "-q", "--print-after=changed", *pipeline, DLRM).err.count("# after") == 1
    ran = run("opt", "-q", "--print-after=fuse-epilog", *pipeline, DLRM)
    assert ran.code == 2
    assert "unknown stage 'fuse-epilog'; did you mean 'fuse-epilogue'?" in ran.err


def test_opt_stops_after_so_many_steps(run: Run) -> None:
    ran = run("opt", "-q", "--stop-after", 1, "--pass", "fuse-embedding, fuse-epilogue", DLRM)
    assert "left out: stage 2, fuse-epilogue" in ran.err
    assert "addmm_relu" not in ran.out


def test_opt_reads_an_unsound_model_only_unverified(run: Run, tmp_path: Path) -> None:
    model = tmp_path / "m.ir"
    model.write_text('model "m" { format = 1 }\n\ndevice @gpu0 "v100"\n\naten.relu_(%nowhere!)\n')
    assert run("opt", model).code == 4
    # the text itself cannot name what is not there
    assert run("opt", "--no-verify", model).code in (0, 4)


def test_opt_writes_a_reproducer_that_it_runs_again(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "again.ir"
    ran = run("opt", "-e", "expect 3 aten.relu", "--reproducer", path, DLRM)
    assert ran.code == 1
    assert f"irgraph opt {path} reproduces the failure" in ran.err
    assert "expected 3 aten.relu, found 5" in run("opt", path).err
    assert run("verify", path).code == 0


def test_passes_shows_parameters_and_what_is_hidden(run: Run, tmp_path: Path) -> None:
    out = run("passes", "fuse-embedding").out
    assert "# parameter least: int, 2 by default" in out
    assert "pass fuse-embedding" in out
    (tmp_path / "clean-copies.irg").write_text('pass clean-copies "Mine." {}')
    assert "# hides " in run("passes", "clean-copies", "--pass-path", tmp_path).out
    assert "it hides" in run("passes", "--pass-path", tmp_path).err
    shown = json.loads(run("passes", "fuse-embedding", "--json").out)
    assert shown["parameters"] == [{"name": "least", "type": "int", "default": "2"}]


def test_diff_needs_no_device(run: Run, tmp_path: Path) -> None:
    fused = tmp_path / "fused.ir"
    assert run("opt", "-q", "--pass", "fuse-epilogue", DLRM, "-o", fused).code == 0
    out = run("diff", "--device", "none", DLRM, fused).out
    assert " removed, " in out
    changes = json.loads(run("diff", "--device", "none", "--json", DLRM, fused).out)["changes"]
    assert {change["op"] for change in changes} >= {
        "aten.linear",
        "aten.relu",
        "irgraph.addmm_relu",
    }
    assert "total change" in run("diff", DLRM, fused).out


def test_bisect_names_the_step(run: Run, tmp_path: Path) -> None:
    given = tmp_path / "given.ir"
    steps = ("--pass", "fuse-epilogue", "-e", "resize B = 65536", "--pass", "clean-copies")
    ran = run("bisect", *steps, "--limit", "step.time=60ms", DLRM, "-o", given)
    assert ran.code == 1
    assert "stage 2, resize B = 65536 breaks it" in ran.err
    assert "irgraph.addmm_relu" in given.read_text()
    assert run("bisect", *steps, DLRM).code == 0
    assert run("bisect", DLRM).code == 2


def test_reduce_prints_a_small_model_that_fails_alike(run: Run) -> None:
    ran = run("reduce", "-e", "expect no aten.bmm", DLRM)
    assert ran.code == 0
    assert ran.out.count("aten.bmm") == 1
    assert "ops became 1 in" in ran.err


@pytest.mark.parametrize("limit", [(), ("--limit", "step.time=1s")])
def test_reduce_needs_something_that_is_wrong(run: Run, limit: tuple[str, ...]) -> None:
    ran = run("reduce", "-e", "expect 5 aten.relu", *limit, DLRM)
    assert ran.code == 2
    assert "nothing to reduce" in ran.err


def test_passes_lists_what_a_pass_can_do_to_a_model(run: Run) -> None:
    ran = run("passes", "fuse-embedding", "--space", DLRM)
    assert ran.out == "fuse-embedding(least = 2)\n"
    assert json.loads(run("passes", "drop-dropout", "--space", DLRM, "--json").out) == []
    assert run("passes", "--space", DLRM).code == 2


def test_opt_prices_ops_for_a_device_and_shows_what_steps_gain(run: Run) -> None:
    script = "expect 5 aten.relu where op.time > 1us"
    ran = run("opt", "--device", "v100", "-e", script, "--pass", "fuse-epilogue", DLRM)
    assert ran.code == 0
    assert "predicted step time and peak memory" in ran.err
    assert "unvalidated: no pair of measured steps" in ran.err
    assert "│ fuse-epilogue " in ran.err


def test_opt_says_what_a_pass_gained_in_similar_programs(run: Run) -> None:
    said = "fuse-embedding: of similar programs: TorchRec's embedding bags"
    for name in ("fuse-embedding", "fuse-epilogue"):
        ran = run("opt", "--device", "v100", "--pass", name, DLRM)
        assert (said in " ".join(ran.err.split())) == (name == "fuse-embedding")


def test_opt_says_which_pass_makes_the_step_slower(run: Run) -> None:
    pipeline = "parallel-branches, fuse-epilogue, resize-batch(to = 4096)"
    err = run("opt", "--pass", pipeline, "--device", "v100", "--host", "v100", DLRM).err
    slower = [line for line in err.splitlines() if line.startswith("slower: ")]
    assert [line.partition(" is ")[0] for line in slower] == ["slower: parallel-branches"]
    assert " ms to the step (+0." in slower[0]


def test_opt_says_where_a_pass_adds_the_first_communication(run: Run) -> None:
    said = "note: the model had no collectives before"
    assert run("opt", "--pass", "overlap-allreduce", DLRM).err.count(said) == 1
    twice = run("opt", "--pass", "overlap-allreduce, overlap-allreduce", DLRM)
    assert twice.code == 1
    assert "expected no c10d.all*reduce*, found 20" in twice.err


def test_opt_says_how_the_peak_of_memory_changed(run: Run) -> None:
    ran = run("opt", "--pass", "fuse-embedding", "--device", "v100", DLRM)
    assert "peak memory of tensors: 3.85 GiB before, 1.98 GiB after (-48.5%)" in ran.err
    assert "│ -1,913.6 │" in ran.err
    assert "peak memory" not in run("opt", "--pass", "fuse-epilogue", DLRM).err


def test_opt_without_a_device_says_how_to_choose_one(run: Run) -> None:
    ran = run("opt", "-e", "expect 5 aten.relu where op.time > 1us", DLRM)
    assert ran.code == 4
    assert "-e:1:26: error: op.time needs a device" in ran.err
    assert "--device v100" in ran.err


def test_opt_says_how_to_run_what_failed_again_on_the_same_device(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "again.ir"
    failing = "expect 3 aten.relu where op.time > 1us"
    ran = run("opt", "--device", "a100", "-e", failing, "--reproducer", path, DLRM)
    assert f"irgraph opt {path} --device a100 --host default reproduces the failure" in ran.err
    assert "expected 3 aten.relu, found 5" in run("opt", path, "--device", "a100").err


def test_opt_refuses_a_device_that_nobody_knows(run: Run) -> None:
    ran = run("opt", "--device", "v1000", "--pass", "fuse-epilogue", DLRM)
    assert ran.code == 2
    assert "did you mean" in ran.err


def test_diff_holds_a_change_against_a_measured_pair(run: Run, tmp_path: Path) -> None:
    after = tmp_path / "after.ir"
    run("opt", "-q", "--pass", "fuse-epilogue", DLRM, "-o", after)
    assert "unvalidated: no pair of measured steps" in run("diff", DLRM, after).out
    found = json.loads(run("diff", DLRM, after, "--json").out)
    assert found["validation"]["status"] == "unvalidated"
    change = found["step_time_change_us"]
    pair = ("--measured-before", "20ms", "--measured-after", f"{20 + change / 1000:.4f}ms")
    assert "validated: measured 20.000 ms before" in run("diff", DLRM, after, *pair).out
    worse = ("--measured-before", "20ms", "--measured-after", "25ms")
    assert "contradicted: measured 20.000 ms before" in run("diff", DLRM, after, *worse).out


def test_half_a_measured_pair_is_refused(run: Run) -> None:
    ran = run("diff", DLRM, DLRM, "--measured-before", "20ms")
    assert ran.code == 2
    assert "give --measured-after as well" in ran.err


def test_bisect_and_reduce_price_ops_for_their_device(run: Run, tmp_path: Path) -> None:
    slow = "expect no aten.addmm where op.time > 1ns"
    ran = run("bisect", "--device", "a100", "-e", slow, DLRM)
    assert ran.code == 1
    assert "fails (checks: 1)" in ran.err
    assert "expected no aten.addmm" in ran.err
    small = tmp_path / "small.ir"
    assert run("reduce", "--most", 40, "--device", "a100", "-e", slow, DLRM, "-o", small).code == 0
    assert small.read_text().count("aten.") < Path(DLRM).read_text().count("aten.")


DROPOUT = """replace %y = aten.relu(%x) with {
  %a = aten.relu(%x)  %y = aten.dropout(%a, p = 0.5, train = true) }"""

RELU = """model "m" { format = 2 }

device @gpu0 "v100"
input %x : f32[8] in $x

%y = aten.relu(%x) : f32[8] in $y
return %y
"""


def test_opt_ends_with_3_if_a_meaning_was_not_compared(run: Run, tmp_path: Path) -> None:
    model = tmp_path / "m.ir"
    model.write_text(RELU)
    ran = run("opt", "-e", DROPOUT, str(model))
    assert (ran.code, ran.out.count("aten.dropout")) == (3, 1)
    assert "meaning not compared (aten.dropout draws random numbers)" in ran.err
    assert run("opt", "--pass", "add-dropout", str(model)).code == 0  # it ``changes results``
