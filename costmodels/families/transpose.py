"""Transposes with a new result; plain ``transpose`` and ``permute`` are views and free."""

from __future__ import annotations

from msgspec.structs import replace

from costmodels.benchmarks.bench import Bench, Call
from costmodels.benchmarks.sweep import Sweep
from costmodels.formulas.elements import launch_floor, transposed_copy
from costmodels.formulas.intervals import BORROWED
from costmodels.formulas.machine import Machine, Rule, shape_text, traffic, work
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.points.point_values import maximum
from irgraph.ir.tensor import row_major

SOURCE = (
    "bytes at 0.6 of DRAM bandwidth (traced V100 permute), whole rows at full bandwidth; Hopper: "
    "offsets of all elements, sectors that reads across rows fetch; rolling: divisions of places"
)


def _transpose(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    if not op.outputs or not op.inputs:
        return None
    result = op.outputs[0]
    source = replace(op.inputs[0], strides=tuple(reversed(row_major(op.inputs[0].shape))))
    return (transposed_copy(source, result, machine),)


def _flip(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price a copy that reads in reverse, otherwise in the order of the result."""
    if not op.outputs or not op.inputs:
        return None
    source = op.inputs[0]
    steps = source.strides or row_major(source.shape)
    return (transposed_copy(replace(source, strides=steps), op.outputs[0], machine),)


ROLL_PER_CYCLE = 0.8
"""Elements per cycle and multiprocessor of ``roll_cuda_kernel``: a remainder and a quotient of
64-bit numbers each, about 40 instructions at 64 a cycle for each (torch,
TensorTransformations.cuh)."""

ROLL_FORMULA = "bytes, or two divisions of 64-bit places for each element, axis by axis"


def _roll(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price a roll of axes: one kernel for each axis, which reads and writes all elements."""
    if not op.outputs or not op.inputs:
        return None
    result = op.outputs[0]
    axes = op.attributes.get("dims", op.operands[2] if len(op.operands) > 2 else ())
    count = maximum(len(axes), 1) if isinstance(axes, tuple) else 1
    offset_time = machine.cycles(result.numel / (ROLL_PER_CYCLE * machine.sheet.sms))
    if machine.paper:
        offset_time = 0.0
    time = maximum(machine.stream(2 * traffic(result)), offset_time) + launch_floor(machine)
    return (work("transpose", f"roll {shape_text(result)}", time, BORROWED, ROLL_FORMULA),) * count


NAMES = ("t_copy", "transpose_copy", "permute_copy", "rot90", "pixel_shuffle", "pixel_unshuffle",
         "channel_shuffle")  # fmt: skip

RULES: dict[str, Rule] = {
    **{f"aten.{name}": _transpose for name in NAMES},
    "aten.flip": _flip,
    "aten.roll": _roll,
}


def _bench(bench: Bench) -> Call:
    tensor = bench.values(bench["batch"], bench["rows"], bench["cols"])
    if bench.case.op == "transpose_copy":
        return lambda: tensor.transpose(1, 2).contiguous()
    return lambda: tensor.permute(1, 0, 2).contiguous()


SWEEPS = {
    "transpose": Sweep(
        dict.fromkeys(("transpose_copy", "permute_copy"), _bench),
        {"batch": (1, 2**12), "rows": (4, 2**11), "cols": (4, 2**11)},
    )
}
