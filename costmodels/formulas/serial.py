"""Kernels whose blocks iterate over memory step by step, each step waiting for its load.

If few blocks run, bandwidth does not matter: a step takes the latency of one load plus the
arithmetic before the next. Measured: H100 SXM 80 GB, torch 2.11.
"""

from __future__ import annotations

from costmodels.formulas.intervals import NEAR, UNTRACED
from costmodels.formulas.machine import Machine
from irgraph.ir.points.point_values import maximum, minimum

STEP_CACHED, STEP = 390, 810
"""Cycles of a step that loads from the second-level cache, and from memory: 383 to 398 and 807 to
821 in group norm's moments over one group (512 threads a block, 0.1 to 165 MB), 330 to 420 and 760
to 820 in ``upsample_bilinear2d`` over 200 to 20,000 planes."""

CACHED, UNCACHED = 0.25, 0.8
"""Size of the data, as a share of the second-level cache, up to which repeated steps always hit,
and from which they always miss, in the same kernels: 390 cycles at 13 MB, 590 at 21 MB, 800 at 44
MB of 50; half of an H100's cache is next to the other half of its multiprocessors."""

SLOTS = {"sm_75": 1024, "sm_86": 1536, "sm_89": 1536, "sm_120": 1536}
"""Maximum number of resident threads of a multiprocessor, by target; 2048 for others."""

MEASURED_ON = "hopper"
"""The architecture on which steps, rows and their rates were measured."""

START = 2.0
"""Microseconds of a kernel with almost no work: 1.3 to 2.7 in these measurements."""


def rate_error(machine: Machine) -> float:
    """Return half a 90 % interval of a rate measured on an H100, wider for other architectures."""
    return NEAR if machine.sheet.architecture == MEASURED_ON else UNTRACED


def has_gpu_laws(machine: Machine) -> bool:
    """Return whether a machine is a GPU priced by other formulas than the paper's."""
    return not (machine.paper or machine.sheet.is_host)


def step_time(machine: Machine, nbytes: float) -> float:
    """Return microseconds of a step through ``nbytes`` of data."""
    share = (nbytes / machine.sheet.l2_bytes - CACHED) / (UNCACHED - CACHED)
    return machine.cycles(STEP_CACHED + (STEP - STEP_CACHED) * minimum(maximum(share, 0.0), 1.0))


def stream_time(machine: Machine, nbytes: float, rate: float) -> float:
    """Return microseconds of bytes by bandwidth, or by ``rate`` per cycle and multiprocessor."""
    return maximum(machine.stream(nbytes), machine.cycles(nbytes / machine.sheet.sms / rate))


def thread_slots(machine: Machine) -> int:
    """Return the maximum number of resident threads of a multiprocessor."""
    return SLOTS.get(machine.sheet.target, 2048)


def block_rounds(machine: Machine, blocks: int, threads: int) -> int:
    """Return the number of rounds of blocks of ``threads`` threads on all multiprocessors."""
    return -(-blocks // (machine.sheet.sms * (thread_slots(machine) // threads)))
