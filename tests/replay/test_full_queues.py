"""Launches that find a full queue: no overhead of the host, and what steps leave to the next."""

from __future__ import annotations

import math
import random
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from costmodels.hosts.from_traces import published_tree
from irgraph.analyze.launches import critical_work, queues
from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.events.tree import build_tree
from irgraph.cli.main import main
from irgraph.overheads.samples import Samples
from irgraph.replay.host_times import HostTimes
from irgraph.replay.replay import Replayer, build_replayer
from tests.capture.kineto.builder import Event, text
from tests.capture.kineto.queued import Host, queued_events

STEADY = [45.0] * 100
"""Kernels that take twice the host's time."""


def replayer(overheads: Host, lengths: list[float], steps: int = 4) -> Replayer:
    return read_replayer(queued_events(overheads, lengths, steps))


def read_replayer(events: list[Event]) -> Replayer:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_text(text(events, indent=False))
        return build_replayer(build_tree(read_kineto(path)))


def mean_time(samples: Samples, kind: str) -> float:
    times = [s.time for key, group in samples.by_key.items() if key[0] == kind for s in group]
    return sum(times) / len(times)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
@example(27910858)
def test_a_trace_gives_back_the_host_that_it_was_simulated_with(seed: int) -> None:
    draw = random.Random(seed)
    overheads = Host(
        t1=draw.uniform(1, 10),
        t2=draw.uniform(2, 30),
        t3=draw.uniform(1, 10),
        t4=draw.uniform(2, 15),
        limit=draw.choice([8, 20, 60, 150]),
    )
    mean, spread = draw.choice([1, 10, 25, 40, 100, 400]), draw.choice([0, 0.3, 1])
    count = draw.choice([100, 150, 300])
    lengths = [mean * math.exp(spread * draw.gauss(0, 1) - spread**2 / 2) for _ in range(count)]
    samples = replayer(overheads, lengths).samples()
    for kind in ("T1", "T2", "T3", "T4"):
        assert mean_time(samples, kind) == pytest.approx(getattr(overheads, kind.lower()), rel=0.03)


def test_every_step_follows_from_the_means_of_the_host() -> None:
    """The queue fills in the first step: the host bounds it, kernels all others."""
    steps = replayer(Host(), STEADY).replay_all()
    assert steps[0].measured < 0.75 * steps[-1].measured
    for step in steps:
        assert step.simulated == pytest.approx(step.measured, rel=0.01)


def test_steps_that_wait_for_a_full_queue_are_not_slow() -> None:
    """The queue fills in the last of four steps, which takes three times as long as the others."""
    trace = replayer(Host(limit=230), [90.0] * 100)
    assert trace.tree.steps[3].time > 2.5 * trace.tree.steps[0].time
    assert not trace.left_out


def test_a_slower_host_empties_the_queue() -> None:
    """Steps take what the slower of host and kernels takes, whatever the trace shows."""
    trace = replayer(Host(), STEADY, steps=6)
    times = HostTimes(trace.samples(), scale=4.0, other=True)
    host = Host()
    assert list(trace.consecutive(times))[-1].simulated == pytest.approx(
        100 * 4 * (host.t1 + host.t2 + host.t3 + host.t4), rel=0.01
    )


def test_a_driver_without_a_limit_has_none() -> None:
    trace = replayer(Host(limit=10**6), STEADY)
    assert not trace.view.queues.releases
    assert mean_time(trace.samples(), "T4") == pytest.approx(5.0, rel=0.01)


def test_few_full_queues_are_no_pauses_of_the_host() -> None:
    """A launch that takes long beside an empty queue stays the host's own time."""
    events = queued_events(Host(limit=10**6), [5.0] * 100, 1)
    pause = next(e for e in events if e["name"] == "cudaLaunchKernel" and e["ts"] > 1_000_500)
    later = [e for e in events if e["ts"] > pause["ts"]]
    for event in later:
        event["ts"] += 300
    pause["dur"] += 300
    for event in events:
        inside = event["cat"] == "cpu_op" and 0 <= pause["ts"] - event["ts"] < event["dur"]
        event["dur"] += 300 if inside or event["cat"] == "user_annotation" else 0
    trace = read_replayer(events)
    assert not trace.view.queues.releases
    assert mean_time(trace.samples(), "T4") == pytest.approx(8.0, rel=0.01)


def test_the_critical_path_names_the_backlog() -> None:
    parts = {row["what"]: row for row in critical_work([replayer(Host(), STEADY).tree])}
    assert parts["earlier"]["name"] == "waiting for earlier steps"
    assert parts["earlier"]["share"] > 0.2
    assert parts["gap"]["share"] < 0.03


def test_the_queue_table_counts_against_the_limit_of_the_trace() -> None:
    (row,) = queues([replayer(Host(), STEADY).tree])
    assert row["limit"] == 40
    assert row["full_share"] > 0.5
    (row,) = queues([replayer(Host(limit=10**6), STEADY).tree])
    assert (row["limit"], row["full_share"]) == (None, 0.0)


@pytest.mark.data
def test_launches_of_a_device_bound_trace(data_dir: Path) -> None:
    """By plain arithmetic a launch takes 4.9 us where fewer than 900 wait."""
    trace = build_replayer(published_tree(data_dir / "hosts/v100-32gb_resnet_2024.json.gz"))
    assert mean_time(trace.samples(), "T4") == pytest.approx(4.9, rel=0.1)
    steps = [step for step in trace.replay_all() if not step.left_out]
    assert len(steps) == 3
    assert all(abs(step.error) < 0.1 for step in steps)


@pytest.mark.data
def test_rocm_has_no_limit(data_dir: Path) -> None:
    for path in sorted((data_dir / "hosts").glob("mi300*.json.gz")):
        assert not build_replayer(published_tree(path)).view.queues.releases, path.name


def test_a_trace_without_a_complete_step_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is cut off within its only step."""
    path = tmp_path / "cut.json"
    events = sorted(queued_events(Host(), STEADY, 1), key=lambda event: event["ts"])
    whole = text(events, indent=False)
    path.write_text(whole[: len(whole) // 2])
    assert main(["replay", str(path)]) == 4
    assert "no complete step to replay" in "".join(capfd.readouterr())
