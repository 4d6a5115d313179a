"""Host tables from traces: T1-T5 of a trace whose every stretch is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.events.tree import build_tree
from irgraph.diagnostics import IrgraphError
from irgraph.overheads.extract import NO_COST, PAPER_COST, extract, ir_name, merge
from irgraph.overheads.rules import RULES, find_rule, stat
from irgraph.replay.replay import build_replayer
from tests.capture.kineto.builder import EVALUATE, write

SHAPES = "f32[8,16] f32[16,4]"


@pytest.fixture
def samples(tmp_path: Path):  # noqa: ANN201
    return build_replayer(build_tree(read_kineto(write(tmp_path)))).samples()


def test_as_profiled(samples) -> None:  # noqa: ANN001
    table = extract([samples], "made up", cost=NO_COST)
    linear = table.ops["aten.linear"]
    assert linear.t2 is not None and linear.t3 is not None and linear.t5 is None
    assert (linear.t2.mean, linear.t2.count) == (20.0, 3)
    assert linear.t3.mean == 20.0
    assert linear.launches == ("kernel",)
    assert table.t4["kernel"].mean == 10.0
    assert table.t4["cudaLaunchKernel"].count == 12
    assert linear.shapes[SHAPES].t2 == linear.t2


def test_profiler_cost_is_taken_off(samples) -> None:  # noqa: ANN001
    table = extract([samples], "made up", cost=PAPER_COST)
    assert table.t4["kernel"].mean == 10.0 - 2.0 - 4.0
    assert table.t1.mean < extract([samples], "made up", cost=NO_COST).t1.mean


def test_merging_loses_no_sample(samples) -> None:  # noqa: ANN001
    table = extract([samples], "made up")
    both = merge([table, table], "both")
    assert both.t1.count == 2 * table.t1.count
    assert both.t1.mean == pytest.approx(table.t1.mean)
    assert both.ops["aten.linear"].shapes[SHAPES].t2.count == 6  # type: ignore[union-attr]
    together = extract([samples, samples], "together")
    assert together.ops["aten.linear"].t2.count == 6  # type: ignore[union-attr]


def test_merging_keeps_quantiles_that_one_table_has_alone(samples) -> None:  # noqa: ANN001
    table = extract([samples], "made up")
    other = replace(table, ops={}, t4={})
    both = merge([table, other], "both")
    assert both.ops["aten.linear"] == table.ops["aten.linear"]
    assert both.t4 == table.t4
    assert (both.t1.count, both.t1.quantiles) == (2 * table.t1.count, {})


def test_tables_with_and_without_their_recording_are_not_merged(samples) -> None:  # noqa: ANN001
    table = extract([samples], "corrected")
    profiled = replace(extract([samples], "uncorrected", cost=NO_COST), profiled=True)
    assert merge([profiled, profiled], "both").profiled
    with pytest.raises(IrgraphError, match=r"of uncorrected include the cost .* of corrected do"):
        merge([table, profiled], "both")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("aten::linear", "aten.linear"),
        (EVALUATE, "autograd.AddmmBackward0"),
        (
            "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",
            "autograd.AccumulateGrad",
        ),
        ("NllLossBackward", "autograd.NllLossBackward0"),
    ],
)
def test_names_are_those_of_models(old: str, new: str) -> None:
    assert ir_name(old) == new


def test_rules_order_a_skewed_sample() -> None:
    times = [*range(1, 20), 400]
    means = {name: stat(times, rule).mean for name, rule in RULES.items()}
    assert means["all"] == np.mean(times)
    assert means["whiskers"] < means["all"]
    assert means["median"] == np.median(times)


def test_unknown_rule_names_the_nearest() -> None:
    with pytest.raises(IrgraphError, match="did you mean 'whiskers'"):
        find_rule("whisker")


@pytest.mark.parametrize(
    ("category", "lacking"),
    [
        ("cuda_runtime", "it has no launch of device work"),
        ("kernel", "it has no launch of device work"),
        ("cpu_op", "no operator encloses its launches"),
    ],
)
def test_a_trace_that_lacks_a_kind_of_event_makes_no_table(
    tmp_path: Path, category: str, lacking: str
) -> None:
    path = write(tmp_path, lambda found: [e for e in found if e["cat"] != category])
    samples = build_replayer(build_tree(read_kineto(path))).samples()
    with pytest.raises(IrgraphError, match=f"trace.json: .*{lacking}") as caught:
        samples.require_sufficient(str(path))
    assert caught.value.exit_code == 4
