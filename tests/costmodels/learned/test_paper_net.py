"""Networks of the search over Table II on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from costmodels.families import learned_families
from costmodels.learned.paper_net import PaperNet, load_paper, save_paper
from irgraph.diagnostics import IrgraphError


def test_a_network_survives_a_file(tmp_path: Path) -> None:
    weight, bias = np.full((1, 1, 2), 0.5, np.float32), np.ones((1, 1), np.float32)
    save_paper(
        PaperNet(learned_families()["softmax"], "softmax", "T4", ((weight, bias),), {"a": 1}),
        tmp_path / "w",
    )
    net = load_paper(tmp_path / "w")
    assert (net.op, net.device, net.made) == ("softmax", "T4", {"a": 1})
    sizes = {"rows": np.asarray([4.0], np.float32), "cols": np.asarray([9.0], np.float32)}
    assert net.predict(sizes) == pytest.approx(np.e * 6)


def test_other_weights_are_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"x": np.zeros(1, np.float32)}, tmp_path / "w")
    with pytest.raises(IrgraphError, match="no network of `irgraph search`"):
        load_paper(tmp_path / "w")
