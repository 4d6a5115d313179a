"""After ``irgraph.warm_up`` the first trial loads nothing that later ones do not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import irgraph
from irgraph.diagnostics import IrgraphError

ROOT = Path(__file__).parents[1]

PROGRAM = """
import sys
import irgraph

graph = irgraph.load("costmodels/evaluate/data/dlrm_default.ir")
irgraph.warm_up(["v100", "h100"])
known = set(sys.modules)
for device in ("v100", "h100"):
    made = irgraph.rewrite(graph, "fuse-embedding, parallel-branches").graph
    irgraph.predict_variants(made, [device], [{"B": 512}])
print(sorted(set(sys.modules) - known))
"""


@pytest.mark.slow
def test_the_first_trial_imports_nothing() -> None:
    words = [sys.executable, "-c", PROGRAM]
    ran = subprocess.run(words, check=True, capture_output=True, text=True, cwd=ROOT)
    assert ran.stdout == "[]\n"


def test_unknown_devices_and_hosts_are_named() -> None:
    with pytest.raises(IrgraphError, match="v1000"):
        irgraph.warm_up(["v1000"], passes=False)
    with pytest.raises(IrgraphError, match="nowhere"):
        irgraph.warm_up(hosts=["nowhere"], passes=False)
    irgraph.warm_up(passes=False)
