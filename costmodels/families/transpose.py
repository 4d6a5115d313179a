"""Transposes that make a new tensor; plain ``transpose`` and ``permute`` are views and free."""

from __future__ import annotations

from msgspec.structs import replace

from costmodels.benchmarks.bench import Bench, Call
from costmodels.benchmarks.sweep import Sweep
from costmodels.formulas.elements import transposed_copy
from costmodels.formulas.machine import Machine, Rule
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.tensor import row_major

SOURCE = "bytes at 0.6 of DRAM bandwidth (traced V100 permute), whole rows at full bandwidth"


def _transpose(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    if not op.outputs or not op.inputs:
        return None
    result = op.outputs[0]
    crossed = replace(op.inputs[0], strides=tuple(reversed(row_major(op.inputs[0].shape))))
    return (transposed_copy(crossed, result, machine),)


NAMES = ("t_copy", "transpose_copy", "permute_copy", "flip", "roll", "rot90", "pixel_shuffle",
         "pixel_unshuffle", "channel_shuffle")  # fmt: skip

RULES: dict[str, Rule] = {f"aten.{name}": _transpose for name in NAMES}


def _bench(bench: Bench) -> Call:
    given = bench.values(bench["batch"], bench["rows"], bench["cols"])
    if bench.case.op == "transpose_copy":
        return lambda: given.transpose(1, 2).contiguous()
    return lambda: given.permute(1, 0, 2).contiguous()


SWEEPS = {
    "transpose": Sweep(
        dict.fromkeys(("transpose_copy", "permute_copy"), _bench),
        {"batch": (1, 2**12), "rows": (4, 2**11), "cols": (4, 2**11)},
    )
}
