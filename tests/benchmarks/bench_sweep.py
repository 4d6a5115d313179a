"""A million variants into Parquet files: memory, what a kill costs, and numbers of workers.

The model is a layer of three calls, so that what counts is what the engine itself needs; what a
variant of a whole step costs ``bench_variants.py`` tells.
Usage: OPENBLAS_NUM_THREADS=1 python tests/benchmarks/bench_sweep.py [variants] [workers ...]
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

MODEL = """model "m" { format = 1  dims = {B = 128, W = 64} }

device @gpu0 "v100"
input %x : f32[B, W] in $x
param %w : f32[W, 512] in $w

%y = aten.mm(%x, %w) : f32[B, 512] in $y
%z = aten.relu(%y) : f32[B, 512] in $z
%s = aten.sum(%z) : f32[] in $s
"""

DEVICES = ("v100", "a100", "h100", "t4")
GIB = 2**30


def command(folder: str, variants: int, workers: int) -> list[str]:
    """Return the words of a sweep of about so many variants."""
    many = max(1, variants // (len(DEVICES) * 500))
    sizes = ["--dim", f"B=8:{8 * many}:8", "--dim", "W=8:4000:8"]
    place = ["-o", f"{folder}/sweep", "--workers", str(workers), "--device", ",".join(DEVICES)]
    return [sys.executable, "-m", "irgraph", "sweep", f"{folder}/model.ir", *sizes, *place]


def parts(folder: str) -> dict[str, int]:
    """Return the files that are done, with when they were written."""
    found = Path(folder, "sweep").glob("part-*.parquet")
    return {path.name: path.stat().st_mtime_ns for path in found}


def killed(folder: str, variants: int) -> dict[str, int]:
    """Begin a sweep, kill it after some chunks, and return what is done."""
    process = subprocess.Popen(command(folder, variants, 0), stdout=subprocess.DEVNULL)
    while process.poll() is None and len(parts(folder)) < variants // 20_000:
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return parts(folder)


def swept(folder: str, variants: int, workers: int) -> tuple[float, float]:
    """Run a sweep to its end; return seconds, and processor seconds of all its processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.monotonic()
    words = command(folder, variants, workers)
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - begin, spent


def main() -> None:
    """Kill a sweep and let it go on; then compare numbers of workers, if any are given."""
    variants = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with TemporaryDirectory() as folder:
        Path(folder, "model.ir").write_text(MODEL)
        done = killed(folder, variants)
        took, spent = swept(folder, variants, 0)
        now = parts(folder)
        again = sum(now[name] != when for name, when in done.items())
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / GIB
        size = sum(path.stat().st_size for path in Path(folder, "sweep").iterdir())
        sys.stdout.write(
            f"{variants:,} variants: killed after {len(done)} of {len(now)} chunks, of which "
            f"{again} are worked out again; the rest in {took:.0f} s ({spent:.0f} s of processor "
            f"time), at most {peak:.2f} GiB, {size / 2**20:.1f} MiB of files\n"
        )
    first = 0.0
    for workers in map(int, sys.argv[2:]):
        with TemporaryDirectory() as folder:
            Path(folder, "model.ir").write_text(MODEL)
            took, _ = swept(folder, variants, workers)
        first = first or took * workers
        share = first / (took * workers)
        sys.stdout.write(f"{workers} workers: {took:.1f} s, efficiency {share:.2f}\n")


if __name__ == "__main__":
    main()
