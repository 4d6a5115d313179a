"""Fills: tensors of zeros, ones or ranges, new or in place."""

from __future__ import annotations

from costmodels.benchmarks.bench import Bench, Call
from costmodels.benchmarks.sweep import Sweep
from costmodels.formulas.elements import streaming
from costmodels.formulas.intervals import CLOSE
from costmodels.formulas.machine import Machine, Rule, first_tensor, shape_text, traffic, work
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor

SOURCE = "bytes written / DRAM bandwidth (paper, III-B-1b), plus the launch floor"


def fill_kernel(tensor: Tensor, machine: Machine) -> Kernel:
    """Return the kernel that writes every element of a tensor."""
    # the paper's program counts two tensors
    nbytes = traffic(tensor) * (2 if machine.paper else 1)
    return work("fill", f"fill {shape_text(tensor)}", streaming(machine, nbytes), CLOSE, SOURCE)


def _fill(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    target = first_tensor(op)
    if target is None:
        return None
    return (fill_kernel(target, machine),) if target.numel else ()


NAMES = (
    "zero_", "zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full",
    "full_like", "new_full", "fill", "fill_", "scalar_tensor", "arange", "eye", "linspace",
    "range", "randint", "randn", "rand", "rand_like", "randn_like", "randint_like", "randperm",
    "tril_indices", "triu_indices", "zero", "_efficientzerotensor", "normal_functional",
    "hann_window", "hamming_window", "index_fill", "index_fill_", "logspace",
)  # fmt: skip

RULES: dict[str, Rule] = {f"aten.{name}": _fill for name in NAMES}


def _bench(bench: Bench) -> Call:
    given = bench.values(bench["elements"])
    return given.zero_ if bench.case.op == "zero_" else lambda: bench.torch.rand_like(given)


SWEEPS = {"fill": Sweep(dict.fromkeys(("zero_", "rand"), _bench), {"elements": (16, 2**28)})}
