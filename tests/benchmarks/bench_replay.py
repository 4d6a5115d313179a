"""Replays and critical paths of recorded steps: time and peak memory, beside another tool.

``python tests/benchmarks/bench_replay.py [--copies N ...] [--peer PYTHON]`` (with IRGRAPH_DATA)

First a published trace (the largest) N times over: all its steps are replayed and explained, in a
process of its own for each N; reading the file is told apart. Then, with ``--peer`` (the Python of
an environment with HolisticTraceAnalysis), the same step's critical path by both tools.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from bench_kineto import copies, largest, measured

ALL = """
import resource, sys, time
now = time.process_time
from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.events.tree import build_tree
from irgraph.schedule.critical_path import critical_path
from irgraph.replay.host_times import HostTimes
from irgraph.replay.replay import build_replayer
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
start = now()
tree = build_tree(read_kineto(sys.argv[1]))
read, full = now(), peak()
one = build_replayer(tree)
lengths = HostTimes(one.samples())
ready = now()
found = one.replay_all(lengths)
scheduled = now()
paths = [critical_path(step.timeline).by_cause() for step in found]
explained = now()
tasks = sum(len(step.timeline.intervals) for step in found)
print(len(found), tasks, read - start, ready - read, scheduled - ready, explained - scheduled,
      full, peak())
"""

ONE = """
import sys, time
now = time.process_time
from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.events.tree import build_tree
from irgraph.schedule.critical_path import critical_path
from irgraph.replay.host_times import HostTimes
from irgraph.replay.replay import build_replayer
tree = build_tree(read_kineto(sys.argv[1]))
step = [step for step in tree.steps if step.complete][0]
start = now()
found = build_replayer(tree).replay(step, HostTimes())
path = critical_path(found.timeline)
path.by_cause(), path.slack
print(now() - start, len(found.timeline.intervals))
"""

PEER = """
import logging, sys, time, warnings
logging.disable(logging.CRITICAL)
warnings.simplefilter("ignore")
now = time.process_time
from hta.trace_analysis import TraceAnalysis
found = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/")
start = now()
graph, good = found.critical_path_analysis(rank=0, annotation="ProfilerStep", instance_id=0)
print(now() - start, len(graph.nodes) if good else "failed")
"""

SAME_STEPS = ("formats/kineto_resnet50_ddp_A100", "dlrm_8xV100/kineto_rank0")


def main() -> None:
    """Run the benchmark and print one line for each size, then for each step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--copies", type=int, nargs="+", default=[2])
    parser.add_argument("--peer", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for count in options.copies:
            path = Path(folder) / "copies.json"
            events = copies(largest(), path, count)
            steps, tasks, *times, full, peak = measured(sys.executable, ALL, path)
            read, ready, scheduled, explained = map(float, times)
            sys.stdout.write(
                f"{events:,} events, {steps} steps of {int(tasks):,} tasks (processor time): "
                f"read {read:.2f} s, waits and overheads {ready:.2f} s, schedule {scheduled:.2f} s,"
                f" paths {explained:.2f} s; peak {float(full):.0f} MB read, {float(peak):.0f} MB\n"
            )
            sys.stdout.flush()
    for name in SAME_STEPS if options.peer else ():
        path = Path(os.environ["IRGRAPH_DATA"]) / "traces" / f"{name}.json.gz"
        ours, tasks = measured(sys.executable, ONE, path)
        theirs, nodes = measured(options.peer, PEER, path)
        sys.stdout.write(
            f"{name}, first step, processor time: irgraph {float(ours):.3f} s ({tasks} tasks), "
            f"HolisticTraceAnalysis {float(theirs):.3f} s ({nodes} nodes)\n"
        )


if __name__ == "__main__":
    main()
