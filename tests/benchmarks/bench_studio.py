"""Time edits in the studio: ``python tests/benchmarks/bench_studio.py``.

The model is the shipped DLRM step, repeated under other names until it has 1,000 device ops. An
edit is what the page sends while one types: statements are run, checked, priced, simulated and
compared, and the answer is encoded as JSON. Prints the median processor time of nine edits that
were not tried before, the longest, and the size of the answer.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[2]))

import irgraph
from irgraph.studio.app import PreviewRequest, Studio
from irgraph.studio.session import Session
from tests.benchmarks.bench_commands import thousand_ops

RUNS = 9

EDITS = {
    "an op is removed": "remove %y = aten.relu(%x) using %x for %y",
    "ops are retyped": "cast many aten.addmm to bf16",
    "a pass that matches": "apply fuse-embedding",
    "a pass that does not": "apply fuse-attention",
    "a refusal": "remove aten.relu",
    "the batch is resized": "resize B = {n}",
    "a search for ops": "find one = aten.relu where op.time > {n}us",
}
"""What is typed; ``{n}`` differs from try to try, and so does a comment behind each."""


def edited(studio: Studio, text: str) -> tuple[list[float], int, bool]:
    """Return processor milliseconds of each try, bytes of the answer, and if it is legal."""
    times, size, legal = [], 0, False
    for number in range(RUNS + 1):
        tried = PreviewRequest(f"{text.format(n=100 + number)} # {number}\n", number + 1)
        studio.session._attempts.clear()
        studio._latest = 0
        begun = time.process_time()
        answer = studio.preview(tried)
        body = msgspec.json.encode(answer)
        times.append(1e3 * (time.process_time() - begun))
        size, legal = len(body), bool(answer["legal"])
    return times[1:], size, legal


def main() -> None:
    """Print the time of each edit."""
    with tempfile.TemporaryDirectory() as folder:
        graph = irgraph.load(thousand_ops(Path(folder)))
        studio = Studio(Session(graph), ("", ""), "model", Path(folder))
        leaves = sum(1 for _ in graph.leaves())
        sys.stdout.write(f"{leaves} device ops, {sum(1 for _ in graph.walk())} ops in all\n")
        for name, text in EDITS.items():
            times, size, legal = edited(studio, text)
            sys.stdout.write(
                f"{statistics.median(times):6.0f} ms, at most {max(times):4.0f} ms, "
                f"{size / 1e3:6.0f} kB, {'legal  ' if legal else 'refused'}:  {name}: {text}\n"
            )


if __name__ == "__main__":
    main()
