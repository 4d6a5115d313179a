"""What common models call is priced by some family, captured as on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodels.devices.library import load_device
from costmodels.pricing.price import price

MODELS = "encoder", "decoder", "images", "noise", "series", "experts", "bags", "graph"


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_every_op_of_a_common_model_is_known(name: str) -> None:
    from irgraph.capture.live import capture_file

    target = f"{Path(__file__).with_name('common_models.py')}:{name}"
    graph = capture_file(target, batch=8, symbolic=False).graph
    priced = price(graph, load_device("a100-sxm4-80gb"))
    assert [op.name for op in priced.unknown] == []
    kernels = [kernel for op in graph.ops for kernel in priced.of(op)]
    assert len(kernels) > 50
    assert all(kernel.time > 0 and kernel.spread > 0 and kernel.formula for kernel in kernels)
