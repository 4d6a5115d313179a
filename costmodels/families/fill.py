"""Fills: tensors of zeros, ones or ranges, new or in place."""

from __future__ import annotations

from costmodels.benchmarks.bench import Bench, Call
from costmodels.benchmarks.sweep import Sweep
from costmodels.formulas.blocks.random_numbers import DRAW_FORMULA, DRAW_RATE, draw_time
from costmodels.formulas.intervals import CLOSE, NEAR
from costmodels.formulas.machine import Machine, Rule, first_tensor, shape_text, traffic, work
from costmodels.formulas.serial import has_gpu_laws
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor

SOURCE = "bytes written / DRAM bandwidth (paper, III-B-1b), plus the launch floor"

FILL_LAWS = {"hopper": (1.0, 1.09), "blackwell": (1.0, 1.09)}
"""Start in microseconds, and share of the reachable bandwidth, of kernels that only write, by
architectures on which they differ from other kernels (measured: H100 SXM 80 GB, torch 2.11: 0.9 to
1.1 us, 0.98 of the datasheet's bandwidth; Blackwell is assumed to equal Hopper)."""


def fill_kernel(tensor: Tensor, machine: Machine) -> Kernel:
    """Return the kernel that writes every element of a tensor."""
    name, nbytes = f"fill {shape_text(tensor)}", traffic(tensor)
    if machine.paper:  # the paper's program counts two tensors
        return work("fill", name, machine.stream(2 * nbytes), CLOSE, SOURCE)
    start, share = FILL_LAWS.get(machine.sheet.architecture, (machine.start, 1.0))
    return work("fill", name, start + machine.stream(nbytes, share), CLOSE, SOURCE)


def _random_numbers(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price random numbers: generators are started, then numbers are drawn at the units' rate."""
    target = first_tensor(op)
    if target is None or not (target.numel and has_gpu_laws(machine)):
        return _fill(op, machine)
    time = draw_time(target.numel, traffic(target), DRAW_RATE, machine) + machine.start
    return (work("fill", f"draw {shape_text(target)}", time, NEAR, DRAW_FORMULA),)


def _fill(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    target = first_tensor(op)
    if target is None:
        return None
    return (fill_kernel(target, machine),) if target.numel else ()


NAMES = (
    "zero_", "zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full",
    "full_like", "new_full", "fill", "fill_", "scalar_tensor", "arange", "eye", "linspace",
    "range", "randperm", "tril_indices", "triu_indices", "zero", "_efficientzerotensor",
    "hann_window", "hamming_window", "index_fill", "index_fill_", "logspace",
)  # fmt: skip

NUMBERS = ("randint", "randn", "rand", "rand_like", "randn_like", "randint_like",
           "normal_functional")  # fmt: skip

RULES: dict[str, Rule] = {
    **{f"aten.{name}": _fill for name in NAMES},
    **{f"aten.{name}": _random_numbers for name in NUMBERS},
}


def _bench(bench: Bench) -> Call:
    tensor = bench.values(bench["elements"])
    return tensor.zero_ if bench.case.op == "zero_" else lambda: bench.torch.rand_like(tensor)


SWEEPS = {"fill": Sweep(dict.fromkeys(("zero_", "rand"), _bench), {"elements": (16, 2**28)})}
