"""Replays of made-up and of published traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodels.hosts.from_traces import published_tree
from irgraph.overheads.rules import find_rule
from irgraph.replay.host_times import HostTimes, launch_ratio
from irgraph.replay.replay import Replayer, build_replayer
from irgraph.schedule.critical_path import critical_path
from tests.capture.kineto.builder import Event, events, host, kernel, write

DLRM = [f"dlrm_8xV100/kineto_rank{rank}.json.gz" for rank in range(8)]
OVERLAPPED = [f"dlrm_4xV100_overlap/kineto_rank{rank}.json.gz" for rank in range(4)]
RESNET = [f"resnet50_V100/kineto_workers{workers}.json.gz" for workers in (0, 4)]
MLP = "mlp_RTX2080Ti/kineto.json.gz"


def load(path: Path) -> Replayer:
    return build_replayer(published_tree(path))


def mean_error(found: Replayer, lengths: HostTimes | None = None) -> float:
    steps = [r for r in found.replay_all(lengths) if not r.left_out]
    return sum(r.simulated for r in steps) / sum(r.measured for r in steps) - 1


@pytest.mark.parametrize("lengths", [HostTimes(), None])
def test_sound_trace_replays_exactly(tmp_path: Path, lengths: HostTimes | None) -> None:
    for step in load(write(tmp_path)).replay_all(lengths):
        assert step.simulated == pytest.approx(step.measured, abs=0.01)
        assert step.simulated_active == pytest.approx(400.0, abs=1.0)
        assert not step.left_out


def test_critical_path_of_a_replay_is_the_step(tmp_path: Path) -> None:
    step = load(write(tmp_path)).replay_all()[0]
    path = critical_path(step.timeline)
    assert path.length == pytest.approx(step.timeline.step_time)


def waiting(found: list[Event], device_us: int) -> list[Event]:
    """Give each step a long kernel and a call that waits for it."""
    for step in range(3):
        at = found[0]["ts"] + step * 1010 + 870
        number = 500 + step
        found.append(host("cuda_runtime", "cudaLaunchKernel", at, 5, correlation=number))
        found.append(kernel("long", at + 10, device_us, number))
        found.append(
            host(
                "cuda_runtime",
                "cudaStreamSynchronize",
                at + 20,
                device_us - 5,
                correlation=number + 10,
            )
        )
    return found


def test_waits_are_not_host_time(tmp_path: Path) -> None:
    found = load(write(tmp_path, lambda f: waiting(f, 100)))
    step = found.replay_all(HostTimes())[0]
    assert step.simulated == pytest.approx(step.measured, abs=0.01)
    assert step.timeline.waiting_time == pytest.approx(90.0, abs=1.0)
    kinds = {kind for kind, _, _ in found.samples().by_key}
    assert "wait" in kinds


def test_slow_steps_are_left_out(tmp_path: Path) -> None:
    def change(found: list[Event]) -> None:
        found[0]["ts"] -= 5000
        found[0]["dur"] += 5000

    steps = load(write(tmp_path, change)).replay_all()
    assert [step.left_out for step in steps] == ["slow", "", ""]


def two_steps(found: list[Event]) -> list[Event]:
    """Keep the first step, and of the second a stub without any work."""
    mark = next(e for e in found if e["name"] == "ProfilerStep#6")
    return [*(e for e in found if e["ts"] < mark["ts"]), {**mark, "dur": 5}]


def test_a_stub_without_work_does_not_push_out_the_only_step_with_work(tmp_path: Path) -> None:
    one, stub = load(write(tmp_path, two_steps)).replay_all()
    assert (one.left_out, stub.left_out) == ("", "no device work")
    assert one.simulated == pytest.approx(1000.0, abs=0.01)


def test_of_two_steps_with_work_none_is_slow(tmp_path: Path) -> None:
    def change(found: list[Event]) -> list[Event]:
        found[0]["ts"] -= 9000
        found[0]["dur"] += 9000
        third = next(e for e in found if e["name"] == "ProfilerStep#7")
        return [e for e in found if e["ts"] < third["ts"]]

    assert [step.left_out for step in load(write(tmp_path, change)).replay_all()] == ["", ""]


def test_data_loading_is_a_cause_of_its_own(tmp_path: Path) -> None:
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"

    def change(found: list[Event]) -> None:
        for step in range(3):
            at = found[0]["ts"] + step * 1010 + 800
            found.append(host("user_annotation", name, at, 100))

    step = load(write(tmp_path, change)).replay_all(HostTimes())[0]
    path = critical_path(step.timeline)
    assert path.by_cause()["loader"] == pytest.approx(100.0)
    assert sum(path.by_cause().values()) == pytest.approx(step.measured)


def test_a_faster_host_makes_a_shorter_step(tmp_path: Path) -> None:
    found = load(write(tmp_path))
    samples = found.samples()
    halved = found.replay_all(HostTimes(samples, scale=0.5))[0]
    assert halved.simulated < 0.7 * halved.measured


def test_launch_ratio_of_a_host_to_itself(tmp_path: Path) -> None:
    samples = load(write(tmp_path)).samples()
    assert launch_ratio(samples, samples) == pytest.approx(1.0)


def test_events_of_a_bare_trace() -> None:
    assert len(events()) == 39


# published traces: what the docs state


@pytest.mark.data
def test_every_usual_step_of_every_trace_follows_from_its_own_times(data_dir: Path) -> None:
    """The worst of them is off by 0.06 %, a step of the overlapped ranks."""
    seen = 0
    for path in sorted((data_dir / "traces").glob("*/kineto*.json.gz")):
        tree = published_tree(path)
        if not tree.trace.on_device.any():
            continue
        for step in build_replayer(tree).replay_all(HostTimes()):
            seen += not step.left_out
            assert step.left_out or abs(step.error) < 0.001, (path.name, step.step)
    assert seen >= 40


@pytest.mark.data
@pytest.mark.parametrize("name", [*DLRM, *OVERLAPPED, *RESNET, MLP])
def test_replay_of_each_measured_stretch_is_exact(data_dir: Path, name: str) -> None:
    assert abs(mean_error(load(data_dir / "traces" / name), HostTimes())) < 0.001


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "bound"),
    [
        *((name, 0.005) for name in DLRM),
        *((name, 0.03) for name in OVERLAPPED),
        *((name, 0.01) for name in RESNET),
        (MLP, 0.01),
    ],
)
def test_replay_with_mean_overheads(data_dir: Path, name: str, bound: float) -> None:
    assert abs(mean_error(load(data_dir / "traces" / name))) < bound


@pytest.mark.data
def test_overheads_of_one_rank_replay_another(data_dir: Path) -> None:
    one, other = (load(data_dir / "traces" / name) for name in DLRM[:2])
    assert abs(mean_error(one, HostTimes(other.samples()))) < 0.01


@pytest.mark.data
def test_overheads_of_another_host_speed_need_scaling(data_dir: Path) -> None:
    quick, loaded = (load(data_dir / "traces" / name) for name in RESNET)
    samples = quick.samples()
    ratio = launch_ratio(loaded.samples(), samples)
    assert mean_error(loaded, HostTimes(samples)) < -0.1
    assert abs(mean_error(loaded, HostTimes(samples, scale=ratio))) < 0.08


@pytest.mark.data
def test_whiskers_bias_the_step_low(data_dir: Path) -> None:
    found = load(data_dir / "traces" / DLRM[0])
    samples = found.samples()
    errors = {r: mean_error(found, HostTimes(samples, find_rule(r))) for r in ("all", "whiskers")}
    assert errors["whiskers"] < -0.02 < abs(errors["all"])
