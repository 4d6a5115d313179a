"""Synchronisation of streams and host, and loading of batches, which launch no work."""

from __future__ import annotations

from costmodels.formulas.machine import Rule, no_kernels
from irgraph.ir.loading import LOAD

SOURCE = "launches nothing; the schedule models the waits and the loading"

RULES: dict[str, Rule] = dict.fromkeys(
    ("sync.record", "sync.wait", "sync.event", "sync.stream", "sync.device", LOAD), no_kernels
)
