"""Damaged traces: every figure that `analyze` prints is what the file says, or it says what is not.

What the file says is worked out by ``tests.analyze.raw``, which shares nothing with irgraph.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from irgraph.analyze import Analysis, analyze
from irgraph.analyze.analysis import NO_STEP_LABELS
from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.events.tree import Tree, build_tree
from irgraph.cli.main import app
from irgraph.diagnostics import IrgraphError
from irgraph.replay.host_times import HostTimes
from irgraph.replay.replay import build_replayer
from tests.analyze import damage, raw

pytestmark = pytest.mark.data

COPIED = (
    "dlrm_8xV100/kineto_rank0",
    "dlrm_4xV100_overlap/kineto_rank0",
    "resnet50_V100/kineto_workers4",
)
"""One trace of one step, one of several streams and orphans, one in the spelling of 2021."""

DIFFERENT = {
    "everything twice": {"K16"},
    "kernels twice": {"K16"},
    "work 5 ms early": {"K13"},
    "some work far off": {"K09"},
    "lengths below zero": {"K09"},
    "lengths missing": {"K09"},
    "unknown categories": {"K17"},
    "no categories": {"K17"},
    "no runtime calls": {"K14"},
    "late runtime calls gone": {"K14"},
    "every tenth runtime call gone": {"K14"},
    "no correlations of work": {"K14"},
    "no correlations of calls": {"K14"},
    "correlations all 0": {"K14"},
    "no arguments": {"K14"},
}
"""Damages after which figures are not those of the file as it stands, but mended ones, and the
codes of what is then said. Without its launch, work belongs to the step in which it ran."""

HARMLESS = {"as it is", "no shapes", "times in nanoseconds", "times with decimals", "shuffled",
            "graphs", "lengths of zero"}  # fmt: skip
"""Damages that change nothing that is shown: a sound trace stays sound."""


def differences(found: Analysis, events: damage.Events, scale: float = 1.0) -> Iterator[str]:
    """Yield the figures that are off by more than 1 % and a microsecond."""
    said = raw.figures(events)
    if [step.step for step in found.steps] != sorted(said):
        yield f"steps {[step.step for step in found.steps]}, not {sorted(said)}"
        return
    for step in found.steps:
        for name, time in step.row().items():
            if name in said[step.step] and time is not None:
                yield from _apart(f"{step.step} {name}", time, said[step.step][name] * scale)
    yield from _of_parts(found, events, scale)


def _of_parts(found: Analysis, events: damage.Events, scale: float) -> Iterator[str]:
    """Yield the tables that do not add up to what the calls of the usual steps launched."""
    usual = [step for step in found.steps if not step.left_out]
    if not usual:
        return
    launched = raw.launched(events)
    mean = sum(launched[step.step][0] for step in usual) / len(usual) * scale
    count = sum(launched[step.step][1] for step in usual) / len(usual)
    for by, lines in found.breakdowns.items():
        rows = [row for key, row in lines.items() if key not in NO_STEP_LABELS]
        yield from _apart(f"time by {by}", sum(us for us, _ in rows), mean)
        yield from _apart(f"events by {by}", sum(n for _, n in rows), count, 0.01)
    idle = sum(step.idle for step in usual) / len(usual)
    yield from _apart("idle", sum(found.idle.values()), idle)


def _apart(what: str, shown: float, true: float, least: float = 1.0) -> Iterator[str]:
    if abs(shown - true) > max(0.01 * abs(true), least):
        yield f"{what}: {shown:.1f}, not {true:.1f}"


def analysed(path: Path) -> tuple[Analysis, Tree]:
    tree = build_tree(read_kineto(path))
    return analyze([tree]), tree


def check(name: str, change: str, data_dir: Path, folder: Path, sound: bool) -> None:
    """Check that a damaged copy is analysed truly, or says why not and ends with 3 or 4."""
    path = damage.damaged(data_dir / f"traces/{name}.json.gz", change, folder)
    try:
        found, tree = analysed(path)
    except IrgraphError as refused:
        assert (refused.exit_code, change in HARMLESS) == (4, False), refused
        return
    health = tree.trace.health
    scale = 1e-3 if change == "times in nanoseconds" else 1.0
    wrong = list(differences(found, raw.read(path), scale))
    if change in DIFFERENT and wrong:
        assert DIFFERENT[change] & set(health.counts), wrong
    elif health.exit_code == 0 or change not in DIFFERENT:
        assert not wrong
    assert bool(health.reasons()) == (health.exit_code == 3)
    if health.exit_code == 0 and tree.trace.on_device.any() and change != "graphs":
        replays = build_replayer(tree).replay_all(HostTimes())
        assert all(abs(step.error) < 0.03 for step in replays if not step.left_out)
    if sound and change in HARMLESS:
        assert health.exit_code == 0, health.lines()


def test_there_are_enough_damages() -> None:
    assert len(damage.ALL) >= 26
    assert set(damage.ALL) >= {*DIFFERENT, *HARMLESS}


@pytest.mark.parametrize("change", damage.ALL)
def test_a_damaged_copy_is_shown_truly(change: str, data_dir: Path, tmp_path: Path) -> None:
    check(COPIED[0], change, data_dir, tmp_path, sound=True)


@pytest.mark.parametrize(
    ("change", "code"),
    {
        "no correlations of work": "K14",
        "no correlations of calls": "K14",
        "no arguments": "K14",
        "some correlations shared": "K34",
        "operators overlap": "K11",
        "one thread": "K11",
        "no runtime calls": "K14",
        "every tenth runtime call gone": "K14",
        "late kernels gone": "K34",
    }.items(),
)
def test_a_replay_says_what_it_lacks(
    change: str, code: str, data_dir: Path, tmp_path: Path
) -> None:
    path = damage.damaged(data_dir / f"traces/{COPIED[0]}.json.gz", change, tmp_path)
    shown = CliRunner().invoke(app, ["replay", str(path)])
    assert shown.exit_code == 3
    assert f"{path}: {code}, " in shown.stdout.replace("\n", "")


def test_a_replay_that_does_not_explain_its_step_says_so(data_dir: Path, tmp_path: Path) -> None:
    """One graph in place of all launches of a step whose device waits for the host: +55 %."""
    path = damage.damaged(data_dir / f"traces/{COPIED[0]}.json.gz", "graphs", tmp_path)
    shown = CliRunner().invoke(app, ["replay", str(path)])
    assert shown.exit_code == 3
    assert "1 of 1 steps do not follow from their own host times" in shown.stdout.replace("\n", " ")


@pytest.mark.slow
@pytest.mark.parametrize("change", damage.ALL)
@pytest.mark.parametrize("name", COPIED[1:])
def test_a_damaged_copy_of_another_trace_is_shown_truly(
    name: str, change: str, data_dir: Path, tmp_path: Path
) -> None:
    check(name, change, data_dir, tmp_path, sound=name == COPIED[2])


@pytest.mark.slow
@pytest.mark.parametrize("change", ["no marks", "late kernels gone", "graphs"])
def test_every_shared_trace_is_shown_truly(change: str, data_dir: Path, tmp_path: Path) -> None:
    for path in sorted((data_dir / "traces").glob("*/kineto*.json.gz")):
        name = f"{path.parent.name}/{path.name.removesuffix('.json.gz')}"
        check(name, change, data_dir, tmp_path, sound=False)
