"""How long the first trial takes beside later ones, without and with ``irgraph.warm_up``.

A trial predicts DLRM_default at another batch size (``predict``), or applies a pass and predicts
(``rewrite``); each line is the median of some fresh processes, in processor time.
Usage: OPENBLAS_NUM_THREADS=1 python tests/benchmarks/bench_warm_up.py [processes]
"""

from __future__ import annotations

import subprocess
import sys
from statistics import median

PROGRAM = """
import sys, time
import irgraph

graph = irgraph.load("costmodels/evaluate/data/dlrm_default.ir")
how, device, kind = sys.argv[1:]
begin = time.process_time()
if how == "warm":
    irgraph.warm_up([device])
took = [time.process_time() - begin]
for trial in range(12):
    begin = time.process_time()
    made = irgraph.rewrite(graph, "fuse-embedding").graph if kind == "rewrite" else graph
    irgraph.predict_variants(made, [device], [{"B": 1000 + 128 * trial}])
    took.append(time.process_time() - begin)
print(*took)
"""


def ran(how: str, device: str, kind: str) -> tuple[float, float, float]:
    """Return milliseconds of the warming up, of the first trial, and the median of later ones."""
    words = [sys.executable, "-c", PROGRAM, how, device, kind]
    told = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    warming, first, *others = (1e3 * float(word) for word in told.split())
    return warming, first, median(others)


def main() -> None:
    """Print a line for each kind of trial and device."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    for kind in ("predict", "rewrite"):
        for device in ("v100", "h100"):
            for how in ("cold", "warm"):
                runs = [ran(how, device, kind) for _ in range(count)]
                warming, first, later = (median(column) for column in zip(*runs, strict=True))
                ratios = sorted(one / other for _, one, other in runs)
                sys.stdout.write(
                    f"{kind:8s} {device:5s} {how}: warm_up {warming:5.0f} ms, first trial "
                    f"{first:5.0f} ms, later ones {later:4.0f} ms; first / later "
                    f"{ratios[0]:.1f} to {ratios[-1]:.1f}\n"
                )


if __name__ == "__main__":
    main()
