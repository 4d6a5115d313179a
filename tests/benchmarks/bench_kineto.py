"""Reading traces: events a second and peak memory, beside HolisticTraceAnalysis where it is found.

``python tests/benchmarks/bench_kineto.py [--trace FILE] [--copies N ...] [--peer PYTHON]``

Each reader runs in its own process on the same plain JSON file: a published trace (by default the
largest under ``IRGRAPH_DATA``) copied N times with times, correlations and ids moved on, shapes
included. ``--peer`` names the Python of an environment with HolisticTraceAnalysis. Peaks are of
the process's own memory (``VmHWM``): ``ru_maxrss`` would count what its parent had before it.
``--typed FILE...`` compares reading with decoding alone instead.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from irgraph.capture.kineto.reading import decoders
from irgraph.capture.kineto.reading.ingest import read_processes

OURS = """
import re, sys, time
begin = time.perf_counter()
from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.events.tree import build_tree
loaded, before = time.perf_counter(), time.process_time()
trace = read_kineto(sys.argv[1])
read, used = time.perf_counter(), time.process_time() - before
if "--tree" in sys.argv:
    build_tree(trace)
built = time.perf_counter()
peak = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
print(read - loaded, built - read, used, peak, len(trace))
"""

PEER = """
import logging, re, sys, time
logging.disable(logging.CRITICAL)
begin = time.perf_counter()
from hta.trace_analysis import TraceAnalysis
loaded, before = time.perf_counter(), time.process_time()
found = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/")
read, used = time.perf_counter(), time.process_time() - before
peak = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
print(read - loaded, 0.0, used, peak, len(found.t.traces[0]))
"""


def copies(source: Path, target: Path, count: int, marks: bool = False) -> int:
    """Write a trace with its events ``count`` times, one after the other; return the events.

    With ``marks`` each copy is a profiler step.
    """
    with gzip.open(source, "rt") as file:
        trace = json.load(file)
    events = trace.pop("traceEvents")
    complete = [e for e in events if e.get("ph") == "X" and e.get("cat") != "Trace"]
    begin = min(e["ts"] for e in complete)
    length = max(e["ts"] + e["dur"] for e in complete) - begin + 1000
    step = 1 + max(e.get("args", {}).get("correlation", 0) for e in complete)
    if marks:
        main = next(e for e in complete if e["cat"] == "user_annotation")
        mark = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#0", "ts": begin - 1}
        events.append({**mark, "pid": main["pid"], "tid": main["tid"], "dur": length - 500})
    # no event names itself after the file's own end
    head = json.dumps(trace)[:-1] + ',\n  "distributedInfo": {"rank": 0},\n  "traceEvents": [\n'
    with target.open("w") as file:
        file.write(head)
        for copy in range(count):
            parts = (moved(e, copy, length, step) for e in events)
            text = ",\n".join("  " + json.dumps(e, indent=2).replace("\n", "\n  ") for e in parts)
            file.write((",\n" if copy else "") + text)
        file.write('\n  ],\n  "traceName": "copies.json"\n}\n')
    return count * len(events)


def moved(event: dict, copy: int, length: int, step: int) -> dict:  # type: ignore[type-arg]
    """Return an event of a later copy."""
    if "ts" in event:
        event = {**event, "ts": event["ts"] + copy * length}
    if event["name"].startswith("ProfilerStep#"):
        number = int(event["name"].removeprefix("ProfilerStep#"))
        event = {**event, "name": f"ProfilerStep#{number + 100 * copy}"}
    args = event.get("args")
    if isinstance(args, dict) and args.get("correlation", 0) > 0:
        args = {**args, "correlation": args["correlation"] + copy * step}
        event = {**event, "args": args}
    if event.get("ph") in ("s", "f") and isinstance(event.get("id"), int):
        event = {**event, "id": event["id"] + copy * step}
    return event


def typed(path: Path, pairs: int) -> tuple[int, float, float]:
    """Return events, and the least seconds of processor to decode and to read a plain file.

    Decoding makes typed structs of all events, with the fields that reading needs, at once from
    the text in memory.
    """
    text = path.read_bytes()
    begin = text.index(b"[", text.index(b'"traceEvents"'))
    text = text[begin : begin + len(_list(text[begin:]))]
    decoder = decoders.fraction_decoder
    decoding, reading = [], []
    for _ in range(pairs):
        before = time.process_time()
        events = len(decoder.decode(text))
        decoding.append(time.process_time() - before)
        before = time.process_time()
        read_processes(path)
        reading.append(time.process_time() - before)
    return events, min(decoding), min(reading)


def _list(text: bytes) -> bytes:
    """Return the list that a text begins with."""
    end = json.JSONDecoder().raw_decode(text.decode())[1]
    return text.decode()[:end].encode()


def report_typed(paths: list[Path], pairs: int) -> None:
    """Print reading beside typed decoding for each file, and for all together."""
    total = [0.0, 0.0]
    with tempfile.TemporaryDirectory() as folder:
        for path in paths:
            plain = Path(folder) / "trace.json"
            is_packed = path.name.endswith(".gz")
            plain.write_bytes(
                gzip.decompress(path.read_bytes()) if is_packed else path.read_bytes()
            )
            events, decoding, reading = typed(plain, pairs)
            total = [total[0] + decoding, total[1] + reading]
            sys.stdout.write(
                f"{path.parent.name}/{path.name:<34} {events:>8,} events  decode {decoding:.4f} s"
                f"  read {reading:.4f} s  {reading / decoding:5.2f} times\n"
            )
    sys.stdout.write(f"all: {total[1] / total[0]:.2f} times\n")


def run(
    python: str, program: str, path: Path, *options: str
) -> tuple[float, float, float, float, int]:
    """Return seconds to read, for the tree, of processor to read; peak MB, events kept."""
    read, tree, used, peak, kept = measured(python, program, path, *options)[-5:]
    return float(read), float(tree), float(used), float(peak), int(kept)


def measured(python: str, program: str, path: Path, *options: str) -> list[str]:
    """Return the words that a program prints about a trace, run in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [python, "-c", program, str(path), *options],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return done.stdout.split()


def largest() -> Path:
    """Return the published trace with the most events."""
    folder = os.environ.get("IRGRAPH_DATA")
    if not folder:
        raise SystemExit("IRGRAPH_DATA is not set: name a trace with --trace")
    return Path(folder) / "traces" / "resnet18_RTX2080Ti" / "kineto.json.gz"


def main() -> None:
    """Run the benchmark and print one line for each reader and size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, default=None)
    parser.add_argument("--copies", type=int, nargs="+", default=[10])
    parser.add_argument("--peer", default="")
    parser.add_argument("--typed", type=Path, nargs="+", default=[])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--tree", action="store_const", const=["--tree"], default=[])
    options = parser.parse_args()
    if options.typed:
        report_typed(options.typed, options.pairs)
        return
    with tempfile.TemporaryDirectory() as folder:
        for count in options.copies:
            path = Path(folder) / "copies.json"
            events = copies(options.trace or largest(), path, count)
            size = path.stat().st_size / 1e6
            sys.stdout.write(f"{events:,} events, {size:,.0f} MB, {time.strftime('%H:%M:%S')}\n")
            report("irgraph", events, run(sys.executable, OURS, path, *options.tree))
            if options.peer:
                report("HolisticTraceAnalysis", events, run(options.peer, PEER, path))


def report(name: str, events: int, figures: tuple[float, float, float, float, int]) -> None:
    """Print one line."""
    read, tree, used, peak, kept = figures
    sys.stdout.write(
        f"  {name:<22} read {read:6.2f} s (processor {used:.2f} s, {events / used:,.0f} events/s)"
        f"  peak {peak:5.0f} MB"
        f"  kept {kept:,}" + (f"  tree {tree:.2f} s" if tree else "") + "\n"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
