"""Recorded steps beside their prices."""

from __future__ import annotations

from pathlib import Path

import pytest

import irgraph
from costmodels.devices.library import load_device
from costmodels.evaluate.recorded import measured_time
from costmodels.pricing.price import price
from irgraph.ir.op import Op
from irgraph.ir.quantity import Quantity

PAIRS = [
    ("mlp_RTX2080Ti/et.json.gz", "mlp_RTX2080Ti/kineto.json.gz"),
    ("dlrm_8xV100/et_rank0.json.gz", "dlrm_8xV100/kineto_rank0.json.gz"),
    ("resnet50_V100/kineto_workers0.json.gz", None),
]


def test_measured_time_is_summed_over_what_an_op_called() -> None:
    def noted(time: float, *body: Op, by: str = "measured") -> Op:
        return Op("aten.x", body=body, notes={"time": Quantity(time, "us"), "by": by})

    assert measured_time(noted(1.0, noted(2.0), noted(4.0, by="learned"))) == 3.0


@pytest.mark.data
@pytest.mark.parametrize(("recording", "kineto"), PAIRS, ids=["mlp", "dlrm", "resnet50"])
def test_what_took_device_time_is_never_priced_as_free(
    data_dir: Path, recording: str, kineto: str | None
) -> None:
    traces = data_dir / "traces"
    lowered = irgraph.lower(traces / recording, kineto=traces / kineto if kineto else None)
    priced = price(lowered.graph, load_device("v100"))
    free = [op for op in lowered.graph.walk() if priced.kernels.get(op) == ()]
    assert [op.name for op in free if measured_time(op)] == []
