"""Critical paths of recorded steps: processor time, beside HolisticTraceAnalysis where it is found.

``python tests/benchmarks/bench_path.py [--trace FILE] [--pairs N] [--peer PYTHON]``

Both read the file first; then the critical path of its last step is timed, each in a process of its
own, in pairs. ``--peer`` names the Python of an environment with HolisticTraceAnalysis on pandas 2.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path

from tests.benchmarks.bench_kineto import measured

OURS = """
import sys, time
from irgraph.analyze.launches import critical_work
from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.events.tree import build_tree
tree = build_tree(read_kineto(sys.argv[1]))
before = time.process_time()
rows = critical_work([tree])
print(time.process_time() - before, sum(row["us"] for row in rows))
"""

PEER = """
import logging, sys, time
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
found = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/")
steps = len([n for n in found.t.symbol_table.sym_table if n.startswith("ProfilerStep")])
before = time.process_time()
graph, _ = found.critical_path_analysis(rank=0, annotation="ProfilerStep", instance_id=steps - 1)
print(time.process_time() - before, graph.get_critical_path_breakdown().duration.sum())
"""


def main() -> None:
    """Run the benchmark; print the median of each reader and the range of the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(os.environ.get("IRGRAPH_DATA", ".")) / "traces/dlrm_8xV100/kineto_rank0.json.gz"
    parser.add_argument("--trace", type=Path, default=default)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--peer", default="")
    options = parser.parse_args()
    readers = {"irgraph": (sys.executable, OURS)}
    if options.peer:
        readers["HolisticTraceAnalysis"] = (options.peer, PEER)
    times: dict[str, list[float]] = {name: [] for name in readers}
    for _ in range(options.pairs):
        for name, (python, program) in readers.items():
            used, length = measured(python, program, options.trace)[-2:]
            times[name].append(float(used))
            sys.stdout.write(f"  {name:<22} {float(used) * 1e3:8.1f} ms  path {length} us\n")
    if options.peer:
        ratios = [b / a for a, b in zip(*times.values(), strict=True)]
        middle = statistics.median(ratios)
        sys.stdout.write(f"ratio {middle:.1f} ({min(ratios):.1f} to {max(ratios):.1f})\n")


if __name__ == "__main__":
    main()
