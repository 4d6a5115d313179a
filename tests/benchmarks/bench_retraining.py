"""Train the shipped models again with the commands they record, and compare held-out errors.

Needs IRGRAPH_DATA and the extra ``train``; takes about ten minutes of one core. Ends with 1 where a
figure moved by more than 0.1 percentage points. Families to train may be named.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from costmodels.learned.weights import Weights, load, load_shipped, shipped_models
from irgraph.cli.main import main as irgraph

MOST = 0.1
"""Percentage points by which a held-out error may move."""


def again(family: str, data: str) -> Weights:
    """Train a family as its weights say they were trained; the experiments change no weight."""
    words = load_shipped(family).made["command"].replace("FOLDER", data).split()[1:]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "again.safetensors"
        irgraph([*words, "--no-study", "-o", str(path)])
        return load(path)


def moved(one: Weights, two: Weights) -> float:
    """Return the largest difference of held-out GMAE or MAPE, in percentage points."""
    old, new = one.made["held_out_pct"], two.made["held_out_pct"]
    return max(
        abs(old[what][part][figure] - new[what][part][figure])
        for what in old
        for part in old[what]
        for figure in ("gmae", "mape")
    )


def main() -> int:
    """Print one line a family; return 1 where a figure moved."""
    worst = 0.0
    for family in sys.argv[1:] or shipped_models():
        ours, theirs = load_shipped(family), again(family, os.environ["IRGRAPH_DATA"])
        pairs = zip(ours.layers, theirs.layers, strict=True)
        equal = all(
            np.array_equal(a, b) for one, two in pairs for a, b in zip(one, two, strict=True)
        )
        change = moved(ours, theirs)
        worst = max(worst, change)
        same = "equal" if equal else "different"
        sys.stdout.write(f"{family:12} errors moved by {change:.3f} points, weights {same}\n")
        sys.stdout.flush()
    return int(worst > MOST)


if __name__ == "__main__":
    sys.exit(main())
