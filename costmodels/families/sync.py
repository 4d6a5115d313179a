"""Synchronisation of streams and host: events and waits launch no work."""

from __future__ import annotations

from costmodels.formulas.machine import Machine, Rule
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op

SOURCE = "launches nothing; the schedule models the waits"


def _no_kernels(op: Op, machine: Machine) -> tuple[Kernel, ...]:
    return ()


RULES: dict[str, Rule] = dict.fromkeys(
    ("sync.record", "sync.wait", "sync.event", "sync.stream", "sync.device"), _no_kernels
)
