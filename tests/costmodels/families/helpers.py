"""Tensors, ops and machines for tests of kernel families."""

from __future__ import annotations

from costmodels.devices.library import load_device
from costmodels.families import rules
from costmodels.formulas.machine import Machine
from costmodels.formulas.software import software_profile
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor

OLD, NEW = "torch-1.10-cuda-11.3", "torch-2"


def tensor(name: str, *shape: int, dtype: str = "f32", device: str = "gpu0") -> Tensor:
    """Return a contiguous tensor in a buffer of its own."""
    return Tensor(name, dtype, shape, f"b_{name}", device=device)


def machine(device: str = "v100@1297", software: str = NEW, mode: str = "corrected") -> Machine:
    """Return a machine with a shipped sheet."""
    return Machine(load_device(device), software_profile(software), mode)


def kernels(op: Op, on: Machine) -> tuple[Kernel, ...]:
    """Return the kernels of an op that some family must know."""
    found = rules()[op.name](op, on)
    assert found is not None
    return found


def call(name: str, *operands: Value, out: tuple[int, ...], **attributes: Value) -> Op:
    """Return an op with one new result."""
    return Op(name, operands, (tensor("out", *out),), attributes)


def in_place(name: str, *operands: Tensor, **attributes: Value) -> Op:
    """Return an op that writes its first operand."""
    return Op(name, operands, (), attributes, frozenset({operands[0].name}))


def total(found: tuple[Kernel, ...]) -> float:
    """Return the summed microseconds."""
    return sum(kernel.time for kernel in found)
