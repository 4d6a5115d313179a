"""``irgraph ranks``: models of several ranks that meet in their collectives."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from costmodels.collectives.load import find_curve
from tests.cli.conftest import Ran
from tests.predict.test_target import REDUCED

Run = Callable[..., Ran]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.ir"
    path.write_text(REDUCED, encoding="utf-8")
    return path


def measured(path: Path, time: int, more: str = "") -> Path:
    """Write a model whose reduction took so many microseconds on a V100."""
    text = REDUCED.replace("format = 1", f'format = 1{more}  measured_on = "Tesla V100-SXM2-16GB"')
    note = f"[time = {time}us, by = measured, kernels = 1]"
    path.write_text(f"{text.rstrip()} {note}\n", encoding="utf-8")
    return path


def test_ranks_wait_for_the_one_that_begins_late(run: Run, model: Path, tmp_path: Path) -> None:
    timeline = tmp_path / "t.json"
    late = ("--late", "2=100us", "--timeline", timeline)
    found = json.loads(run("ranks", model, model, model, "--json", *late).out)
    assert found["straggler"] == 2
    assert [row["waits_us"] for row in found["ranks"]] == pytest.approx([100.0, 100.0, 0.0])
    (meeting,) = found["collectives"]
    assert meeting["name"] == "all_reduce of 3, 4194304 B"
    sent = [row["sent_bytes"] for row in found["ranks"]]
    assert sent == [pytest.approx(2 * 2 / 3 * 2**22)] * 3, "all-reduce: 2 (n - 1) / n of 4 MiB"
    assert meeting["transfer_us"] == pytest.approx(find_curve("all_reduce", 3).time(2**22))
    assert "3 ranks on one machine" in found["rests_on"][0]
    assert "rank 2" in timeline.read_text(encoding="utf-8")


def test_a_table_says_who_is_waited_for_and_what_it_rests_on(run: Run, model: Path) -> None:
    ran = run("ranks", model, model, "--ranks", "8", "--late", "0=1ms")
    assert (ran.code, "exposed_us" in ran.out) == (0, True)
    assert "the others wait longest for rank 0" in ran.err
    assert "7.0 MiB sent by the rank that sends most" in ran.err, "2 * 7 / 8 of 4 MiB"
    assert "1 collectives" not in ran.err
    assert "8 ranks on one machine, as given; curve of v100" in ran.err


def test_warnings_that_differ_in_shares_alone_are_said_once(
    run: Run, model: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.ir"
    ops = "".join(f"%n{i} = aten.neg(%g) : f32[1048576] in $n{i}\n" for i in range(40))
    other.write_text(REDUCED + ops, encoding="utf-8")
    ran = run("ranks", model, other, "--device", "a100")
    warnings = [" ".join(part.split()) for part in ran.err.split("WARNING: ")]
    (said,) = [text for text in warnings if "no host is named" in text]
    assert re.search(r"default@4\.9us\. [0-9]+ to [0-9]+% of the critical path is host time", said)
    alone = " ".join(run("ranks", model, model, "--device", "a100").err.split())
    assert re.search(r"default@4\.9us\. [0-9]+% of the critical path", alone)


def test_ranks_on_a_device_without_curves_are_refused(run: Run, model: Path) -> None:
    ran = run("ranks", model, model, "--device", "mi250")
    assert (ran.code, ran.out) == (4, "")
    assert "rank 0 has collectives without a time: c10d.allreduce_ x1" in ran.err


@pytest.mark.parametrize("late", ["2=1ms", "x=1ms", "1=soon"])
def test_what_is_no_late_rank_is_refused(run: Run, model: Path, late: str) -> None:
    ran = run("ranks", model, model, "--late", late)
    assert (ran.code, "--late" in ran.err) == (2, True)


@pytest.mark.parametrize(
    ("late", "why"),
    [
        ("1=gamma:2ms", "no distribution is called 'gamma'; known: exponential, normal, uniform"),
        ("1=normal:2ms", "normal takes 2 times"),
        ("all=uniform:2ms,1ms", "the least time goes first"),
    ],
)
def test_what_is_no_distribution_is_refused(run: Run, model: Path, late: str, why: str) -> None:
    ran = run("ranks", model, model, "--late", late)
    assert (ran.code, why in ran.err) == (2, True)


def test_starts_are_drawn_from_distributions(run: Run, model: Path) -> None:
    two = ("ranks", model, model, "--json", "--draws", "400")
    found = json.loads(run(*two, "--late", "1=uniform:0,200us").out)
    alone = json.loads(run("ranks", model, model, "--json").out)["step_time_us"]
    assert found["step_time_us"] == pytest.approx(alone + 100.0)
    drawn = found["step_draws_us"]
    assert drawn["mean"] == pytest.approx(alone + 100.0, abs=10.0)
    assert drawn["p90"] == pytest.approx(alone + 180.0, abs=15.0)
    assert drawn == json.loads(run(*two, "--late", "1=uniform:0,200us").out)["step_draws_us"]
    assert drawn != json.loads(run(*two, "--seed", "1", "--late", "1=uniform:0,200us").out)
    told = run("ranks", model, model, "--late", "all=normal:1ms,100us").err
    assert "step over 200 draws of start times: mean 1." in told


def test_the_path_across_ranks_adds_up_to_the_step(run: Run, model: Path) -> None:
    found = json.loads(run("ranks", model, model, "--json", "--late", "1=1ms").out)
    parts = {part["what"]: part for part in found["path"]["parts"]}
    assert sum(part["path_us"] for part in parts.values()) == pytest.approx(found["step_time_us"])
    assert (parts["start"]["path_us"], parts["start"]["ranks"]) == (1000.0, "1")
    for row in found["ranks"]:
        assert sum(row["shares_us"].values()) == pytest.approx(row["step_us"])
    assert "critical path, 0 hops" in run("ranks", model, model).out


def test_a_rank_that_is_late_twice_is_refused(run: Run, model: Path) -> None:
    ran = run("ranks", model, model, "--late", "1=3ms", "--late", "1=4ms")
    assert (ran.code, "--late: rank 1 is given twice: name each rank once" in ran.err) == (2, True)


def test_measured_collectives_take_as_long_as_where_they_were_shortest(
    run: Run, tmp_path: Path
) -> None:
    paths = [measured(tmp_path / f"{time}.ir", time) for time in (900, 200)]
    found = json.loads(run("ranks", *paths, "--json").out)
    assert found["collectives"][0]["transfer_us"] == pytest.approx(200.0)
    (text,) = (line for line in found["rests_on"] if "measured collectives" in line)
    assert "measured collectives contain waiting" in text
    assert "waiting common to all 2 ranks stays in it" in text
    modelled = run("ranks", paths[0], paths[1], "--device", "a100", "--json").out
    assert "contain waiting" not in modelled


@pytest.mark.parametrize("command", ["predict", "opt"])
def test_commands_that_price_take_ranks(run: Run, model: Path, command: str) -> None:
    options = ("-e", "expect 1 c10d.allreduce_", "--device", "v100") if command == "opt" else ()
    lacking, known = run(command, model, *options), run(command, model, *options, "--ranks", "4")
    assert (lacking.code, known.code) == (0, 0)
    assert "nothing says how many ranks" in lacking.out + lacking.err
    assert "nothing says" not in known.out + known.err
    if command == "opt":
        assert "ranks = 4" in known.out


def test_two_models_are_compared_among_ranks(run: Run, model: Path) -> None:
    figures = json.loads(run("diff", model, model, "--ranks", "4", "--json").out)["figures"]
    assert figures["gpu_active_us"] == pytest.approx([171.1, 171.1], abs=0.5)
    assert run("diff", model, model, "--ranks", "4", "--fabric", "w100").code == 2


def test_a_script_asks_for_the_time_of_a_collective_by_the_models_ranks(
    run: Run, model: Path, tmp_path: Path
) -> None:
    known = tmp_path / "known.ir"
    known.write_text(REDUCED.replace("format = 1", "format = 1  ranks = 4"), encoding="utf-8")
    ask = ("-e", "expect 1 c10d.allreduce_ where op.time > 170us", "--device", "v100")
    assert run("opt", known, *ask).code == 0
    ran = run("opt", model, *ask)
    assert (ran.code, "nothing says how many ranks take part" in ran.err) == (1, True)


def test_the_interval_of_a_long_collective_is_that_of_its_curve(run: Run, tmp_path: Path) -> None:
    """Its error is one for all ranks: three of them are as uncertain as one, and not surer."""
    path = tmp_path / "long.ir"
    path.write_text(REDUCED.replace("1048576", "536870912"), encoding="utf-8")
    curve = find_curve("all_reduce", 3)
    time = curve.time(2**31)
    spread = 1.6449 * math.sqrt(math.pi / 2) * curve.error * time  # of a normal distribution
    found = json.loads(run("ranks", path, path, path, "--json").out)
    low, high = found["step_time_interval_us"]
    assert low < found["step_time_us"] < high
    assert high - low == pytest.approx(2 * spread, rel=0.15)
    assert found["coverage"] == {"heuristic": 1.0}
    said = run("ranks", path, path, path).err
    assert "90 % interval" in said and "device time: 100.0% heuristic" in said
    assert time > 100 * (found["step_time_us"] - time)
