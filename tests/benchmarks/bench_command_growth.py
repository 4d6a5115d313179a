"""Growth of each main command with its input: ``python tests/benchmarks/bench_command_growth.py``.

Each command runs in an own process on inputs of 500, N and 4 N ops (or launches of a trace). The
ratio is the growth from N to 4 N beyond the time at 500 as a multiple of linear growth: 1 is
linear, 4 quadratic. A ratio above ``MAX_RATIO`` is a failure. ``--ops 8000`` sets N.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench_commands import IRGRAPH, seconds

BASE_OPS = 500
FACTOR = 4
MAX_RATIO = 1.6
"""Largest ratio of a command: caches and collections of garbage make linear code up to 1.3."""

MODEL_COMMANDS = (
    ("fmt",),
    ("show",),
    ("verify",),
    ("predict",),
    ("roofline",),
    ("opt", "--pass", "clean-copies"),
    ("explore", "--json", "{folder}/graph.json"),
    ("sweep", "--dim", "B=64,128", "-o", "{folder}/sweep-{ops}", "--workers", "0"),
    ("tune", "--space", "{folder}/space.toml", "--trials", "2", "--seed", "1"),
)
TRACE_COMMANDS = (("analyze",), ("replay",), ("overheads",), ("lower", "-o", "{folder}/lowered.ir"))
SPACE = 'devices = ["v100", "t4"]\npasses = ["clean-copies"]\n[dims]\nB = [64, 128]\n'
"""Search space of ``tune``."""

PAIR_COMMANDS = (("diff", "model"), ("compare", "trace"))


def equal_ops(path: Path, count: int) -> None:
    """Write a model of ``count`` equal ops, each of which takes the result before it."""
    lines = ['model "equal" { format = 1  dims = {B = 128} }', 'device @gpu0 "v100"', ""]
    lines.append("input %y0 : f32[B, 64] in $y0")
    lines += [
        f"%y{number + 1} = aten.relu(%y{number}) : f32[B, 64] in $y{number + 1}"
        for number in range(count)
    ]
    path.write_text("\n".join(lines) + "\n")


def equal_launches(path: Path, count: int) -> None:
    """Write a Kineto trace of ``count`` equal ops in ten steps, one kernel each."""
    events: list[dict[str, object]] = []
    steps, period = 10, 20.0
    for step in range(steps):
        begin = step * count // steps * period
        duration = (count // steps) * period - 1.0
        events.append(_event("user_annotation", f"ProfilerStep#{step}", begin, duration, {}))
    for number in range(count):
        start = number * period + 1.0
        ids: dict[str, object] = {"correlation": number + 1, "External id": number + 1}
        shapes = {"Input Dims": [[128, 64]], "Input type": ["float"]}
        call: dict[str, object] = {"External id": number + 1, **shapes}
        events.append(_event("cpu_op", "aten::relu", start, 12.0, call))
        events.append(_event("cuda_runtime", "cudaLaunchKernel", start + 3, 6.0, ids))
        kernel: dict[str, object] = {**ids, "stream": 7, "device": 0}
        events.append(
            _event("kernel", "relu_kernel", start + 8, 5.0, kernel) | {"pid": 0, "tid": 7}
        )
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))


def _event(
    category: str, name: str, start: float, duration: float, args: dict[str, object]
) -> dict[str, object]:
    times = {"ts": 1000.0 + start, "dur": duration, "pid": 1, "tid": 1}
    return {"ph": "X", "cat": category, "name": name, **times, "args": args}


def growth(folder: Path, command: tuple[str, ...], kinds: tuple[str, ...], ops: int) -> float:
    """Return how a command's time grows from ``ops`` to four times as many; 1 is linear."""
    sizes = (BASE_OPS, ops, FACTOR * ops)
    times = []
    for size in sizes:
        options = [text.format(folder=folder, ops=size) for text in command]
        inputs = [str(folder / f"{kind}-{size}") for kind in kinds]
        times.append(seconds(*IRGRAPH, options[0], *inputs, *options[1:]))
    base, middle, last = times
    linear = (sizes[2] - sizes[0]) / (sizes[1] - sizes[0])
    ratio = (last - base) / max(middle - base, 1e-3) / linear
    shown = "  ".join(f"{size}: {time:6.2f} s" for size, time in zip(sizes, times, strict=True))
    sys.stdout.write(f"{ratio:5.2f} times linear  {shown}  irgraph {command[0]}\n")
    sys.stdout.flush()
    return ratio


def main() -> int:
    """Print each command's growth; return 1 if one grows faster than linear."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="commands; all by default")
    parser.add_argument("--ops", type=int, default=8000, help="N, number of ops")
    options = parser.parse_args()
    commands: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
        *((command, ("model",)) for command in MODEL_COMMANDS),
        *((command, ("trace",)) for command in TRACE_COMMANDS),
        *(((name,), (kind, kind)) for name, kind in PAIR_COMMANDS),
    ]
    writers: dict[str, Callable[[Path, int], None]] = {
        "model": equal_ops,
        "trace": equal_launches,
    }
    ratios = {}
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        (folder / "space.toml").write_text(SPACE)
        for size in (BASE_OPS, options.ops, FACTOR * options.ops):
            for kind, write in writers.items():
                write(folder / f"{kind}-{size}", size)
        for command, kinds in commands:
            if not options.names or command[0] in options.names:
                ratios[command[0]] = growth(folder, command, kinds, options.ops)
    worse = {name: ratio for name, ratio in ratios.items() if ratio > MAX_RATIO}
    if worse:
        sys.stdout.write(f"faster than linear: {', '.join(worse)}\n")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
