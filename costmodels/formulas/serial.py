"""Kernels whose blocks walk through memory step by step, each step waiting for what it loads.

Where few blocks run, bandwidth does not matter: a step takes what one load takes, and what is
computed with it before the next. Measured: H100 SXM 80 GB, torch 2.11.
"""

from __future__ import annotations

from costmodels.formulas.intervals import NEAR, UNTRACED
from costmodels.formulas.machine import Machine
from irgraph.ir.points.point_values import maximum, minimum

STEP_CACHED, STEP = 390, 810
"""Cycles of a step that loads from the second-level cache, and from memory: 383 to 398 and 807 to
821 of group norm's moments over one group (512 threads a block, 0.1 to 165 MB), 330 to 420 and 760
to 820 of ``upsample_bilinear2d`` over 200 to 20,000 planes."""

CACHED, UNCACHED = 0.25, 0.8
"""Data as a share of the second-level cache up to which repeated steps find all of it there, and
from which they find nothing, in the same kernels: 390 cycles at 13 MB, 590 at 21 MB, 800 at 44 MB
of 50; half of an H100's cache lies beside the other half of its multiprocessors."""

SLOTS = {"sm_75": 1024, "sm_86": 1536, "sm_89": 1536, "sm_120": 1536}
"""Threads that a multiprocessor holds; 2048 where nothing is said."""

MEASURED_ON = "hopper"
"""The architecture that steps, rows and the rates beside them were measured on."""

START = 2.0
"""Microseconds of a kernel that does next to nothing: 1.3 to 2.7 of those measured here."""


def doubt(machine: Machine) -> float:
    """Return half an interval of a rate measured on a H100, wider where it is carried to others."""
    return NEAR if machine.sheet.architecture == MEASURED_ON else UNTRACED


def has_gpu_laws(machine: Machine) -> bool:
    """Return whether kernels are those of a GPU, and formulas may leave the paper's."""
    return not (machine.paper or machine.sheet.is_host)


def step(machine: Machine, nbytes: float) -> float:
    """Return microseconds of a step through data of so many bytes."""
    share = (nbytes / machine.sheet.l2_bytes - CACHED) / (UNCACHED - CACHED)
    return machine.cycles(STEP_CACHED + (STEP - STEP_CACHED) * minimum(maximum(share, 0.0), 1.0))


def streamed(machine: Machine, nbytes: float, rate: float) -> float:
    """Return microseconds of bytes, by the bandwidth or so many a cycle and multiprocessor."""
    return maximum(machine.stream(nbytes), machine.cycles(nbytes / machine.sheet.sms / rate))


def slots(machine: Machine) -> int:
    """Return the threads that a multiprocessor holds at a time."""
    return SLOTS.get(machine.sheet.target, 2048)


def rounds(machine: Machine, blocks: int, threads: int) -> int:
    """Return how often all multiprocessors fill up with blocks of so many threads."""
    return -(-blocks // (machine.sheet.sms * (slots(machine) // threads)))
