"""Replays of recorded steps with the host times of other machines."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

from costmodels.hosts.from_traces import published_tree
from irgraph.overheads.table import LAUNCH_STD
from irgraph.replay.host_times import HostTimes, launch_ratio
from irgraph.replay.replay import Replayed, build_replayer

TRACES = (
    "hosts/a100pg_dlrm.json.gz",
    "hosts/h100_bert.json.gz",
    "hosts/h100_vit.json.gz",
    "hosts/mi300vf_bert.json.gz",
    "hosts/mi300vf_vit.json.gz",
    "hosts/v100-16gb_dlrm.json.gz",
    "hosts/v100-32gb_resnet_2024.json.gz",
    "traces/dlrm_8xV100/kineto_rank0.json.gz",
    "traces/resnet18_RTX2080Ti/kineto.json.gz",
)
"""Traces whose steps are replayed; the other ones are first calls, or take minutes."""

MAX_STEPS = 3
"""Maximum number of replayed steps of a trace."""


def replays_across_machines(folder: Path) -> Iterator[Replayed]:
    """Yield replays of each trace's typical steps with host times of each other card's trace.

    Host times are scaled by launch times, as in ``irgraph replay --overheads TRACE``.
    """
    paths = [folder / name for name in TRACES if (folder / name).is_file()]
    traces = [build_replayer(published_tree(path)) for path in paths]
    pairs = permutations([(trace, trace.samples()) for trace in traces], 2)
    for (replayer, samples), (other, other_samples) in pairs:
        if replayer.tree.trace.device_name == other.tree.trace.device_name:
            continue
        scale = launch_ratio(samples, other_samples)
        times = HostTimes(other_samples, scale=scale, other=True, machine_std=LAUNCH_STD)
        for step in replayer.typical_steps[:MAX_STEPS]:
            yield replayer.replay(step, times).without_timeline()
