"""Synchronisation of streams and host, and loading of batches, which launch no work."""

from __future__ import annotations

from costmodels.formulas.machine import Machine, Rule
from irgraph.ir.cost import Kernel
from irgraph.ir.loading import LOAD
from irgraph.ir.op import Op

SOURCE = "launches nothing; the schedule models the waits and the loading"


def _no_kernels(op: Op, machine: Machine) -> tuple[Kernel, ...]:
    return ()


RULES: dict[str, Rule] = dict.fromkeys(
    ("sync.record", "sync.wait", "sync.event", "sync.stream", "sync.device", LOAD), _no_kernels
)
