"""Sizes and times of reports: ``python tests/benchmarks/bench_reports.py [NAME ...]``.

Runs commands on the models that ship and, where ``IRGRAPH_DATA`` names them, on recorded traces;
each in a process of its own, with and without ``--html``, in turn. Prints the size of the report,
and how many times the command's processor time it takes with one. Names choose among the runs.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.bench_commands import COMPILED, IRGRAPH

MODELS = resources.files("costmodels.evaluate") / "data"
EXAMPLES = Path(__file__).parents[2] / "examples"
RUNS = 3

SPACE = 'passes = ["fuse-embedding", "fuse-epilogue"]\ndims.B = "1024:4096:1024"\n'


def of_models(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield command lines about models that ship."""
    dlrm, fused = str(MODELS / "dlrm_default.ir"), str(folder / "fused.ir")
    for name in ("dlrm_default.ir", "dlrm_mlperf.ir", "resnet50.ir.gz", "inception_v3.ir.gz"):
        yield "predict", str(MODELS / name), "--device", "v100"
    yield "opt", "--pass", "fuse-embedding", dlrm, "--device", "v100", "-o", fused
    yield "diff", dlrm, fused, "--device", "v100"
    yield "ranks", dlrm, dlrm, "--device", "v100"
    (folder / "space.toml").write_text(SPACE)
    yield "tune", dlrm, "--space", str(folder / "space.toml"), "--trials", "16", "--seed", "1"


def of_traces() -> Iterator[tuple[str, ...]]:
    """Yield command lines about recorded traces."""
    data = os.environ.get("IRGRAPH_DATA")
    files = sorted(Path(data, "traces").rglob("kineto*.json.gz")) if data else []
    for path in files:
        yield "analyze", str(path)
    for path in files:
        if "workers" in path.name or "rank0" in path.name or path.name == "kineto.json.gz":
            yield "replay", str(path)
    workers = [str(path) for path in files if "workers" in path.name]
    if len(workers) == 2:
        yield "compare", *workers
        model = str(MODELS / "resnet50.ir.gz")
        yield "predict", model, "--device", "v100", "--recorded", workers[0]


REPAIRED = 3
"""Exit code of commands that mended a trace."""


def seconds(*words: str) -> float:
    """Return the processor seconds of a command with its children; what it says is dropped."""
    quiet = [(os.POSIX_SPAWN_OPEN, out, os.devnull, os.O_WRONLY, 0) for out in (1, 2)]
    line = [sys.executable, *IRGRAPH, *words]
    _, status, used = os.wait4(os.posix_spawn(line[0], line, COMPILED, file_actions=quiet), 0)
    if os.waitstatus_to_exitcode(status) not in (0, REPAIRED):
        raise SystemExit(
            f"irgraph {' '.join(words)} ended with {os.waitstatus_to_exitcode(status)}"
        )
    return used.ru_utime + used.ru_stime


def measured(words: tuple[str, ...], report: Path) -> tuple[float, float, int]:
    """Return processor seconds without and with a report, medians, and its bytes."""
    with_one = (*words, "--html", str(report))
    turns = [[seconds(*one) for one in (words, with_one)] for _ in range(RUNS)]
    without, told = (statistics.median(times) for times in zip(*turns, strict=True))
    return without, told, report.stat().st_size


def main() -> None:
    """Print a line for each report."""
    wanted = sys.argv[1:]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for words in (*of_models(folder), *of_traces()):
            line = " ".join(words)
            if wanted and not any(name in line for name in wanted):
                continue
            try:
                without, told, size = measured(words, folder / "report.html")
            except SystemExit as error:
                sys.stdout.write(f"  fails: {error}\n")
                continue
            sys.stdout.write(
                f"{size / 1e6:6.2f} MB, {without:6.2f} s, {told / without:4.2f} times with --html: "
                f"irgraph {line}\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
