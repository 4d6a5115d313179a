"""The main job on a built-in example: capture, fuse, predict, compare with measured steps.

Runs the same commands that a user would type, and shows each before its output.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

HERE = Path(__file__).parent
WORK = Path("build/demo")

STEPS = [
    (
        "Capture one training step of a recommendation model (DLRM_default of the paper), without\n"
        "a GPU and without computing anything: on torch's meta device, for any batch size.",
        ["capture", f"{HERE / 'dlrm.py'}:default", "--batch", "2048", "-o", f"{WORK / 'dlrm.ir'}"],
    ),
    (
        "Rewrite it: the eight lookups, their backward and the update of the tables become one\n"
        "batched operation each. The report says what was rewritten and why that is legal.",
        ["opt", "--pass", "fuse-embedding", f"{WORK / 'dlrm.ir'}", "-o", f"{WORK / 'fused.ir'}"],
    ),
    (
        "Is it still the same program? Run both on the same inputs, at a small size on this CPU,\n"
        "and compare everything that leaves the step.",
        ["check", f"{WORK / 'dlrm.ir'}", f"{WORK / 'fused.ir'}"],
    ),
    (
        "What would that change on a V100? Nothing has run there: these are predictions.",
        ["diff", f"{WORK / 'dlrm.ir'}", f"{WORK / 'fused.ir'}", "--device", "v100"],
    ),
    (
        "The fused step in detail: critical path, coverage, and a timeline for ui.perfetto.dev.",
        ["predict", f"{WORK / 'fused.ir'}", "--timeline", f"{WORK / 'timeline.json'}"],
    ),
    (
        "How far can this be trusted? The same method beside eight V100 steps that others\n"
        "measured in 2022: with the software of that time and inputs in pinned memory, so times\n"
        "differ a little from those above.",
        ["evaluate", "dlrm-v100"],
    ),
]


def command(arguments: list[str]) -> int:
    """Run ``python -m irgraph`` in this process and return its exit code."""
    sys.argv = ["irgraph", *arguments]
    try:
        runpy.run_module("irgraph", run_name="__main__")
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def run() -> int:
    """Run every step; stop at the first that fails and return its exit code."""
    WORK.mkdir(parents=True, exist_ok=True)
    for number, (text, arguments) in enumerate(STEPS, 1):
        print(f"\n[{number}/{len(STEPS)}] {text}\n\n$ irgraph {' '.join(arguments)}\n", flush=True)
        code = command(arguments)
        if code:
            return code
    print(f"\nThe models and the timeline are in {WORK}/. Next: README.md, `irgraph --help`.")
    return 0


if __name__ == "__main__":
    sys.exit(run())
