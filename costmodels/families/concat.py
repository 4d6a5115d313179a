"""Concatenating, splitting and repeating tensors."""

from __future__ import annotations

from costmodels.benchmarks.bench import Bench, Call
from costmodels.benchmarks.sweep import Sweep
from costmodels.formulas.elements import ROOFLINE, streaming
from costmodels.formulas.intervals import FEW, NEAR
from costmodels.formulas.machine import Machine, Rule, shape_text, traffic, work
from costmodels.formulas.strided import WHOLE_SHARES, strided_time
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op, tensors_in
from irgraph.ir.points.point_values import maximum
from irgraph.ir.tensor import Tensor

SHARE = 0.79
"""Share of DRAM bandwidth of ``CatArrayBatchedCopy`` (the paper's program, concat model)."""

START = 1.0
"""Microseconds in addition to the launch floor: pointers and sizes of the parts are fetched."""

MEASURED_RATES = {"hopper": (0.87, 0.0), "blackwell": (0.87, 0.0)}
"""Share and start of other architectures (H100 SXM 80 GB, torch 2.11: 1.3 to 1.6 us for almost no
bytes, 31 M f32 in 95 us; Blackwell is assumed to equal Hopper)."""

HALVES_PER_CYCLE = 2.2
"""Elements of two bytes per cycle and multiprocessor (same source: 48 M f16 in 88 us)."""

DIVISIONS_PER_CYCLE = 3.8
"""Axes times elements per cycle and multiprocessor of non-contiguous parts: a division for each,
about 17 instructions at 64 a cycle (torch, Shape.cu, ``CatArrIndexToOffset``)."""

MAX_PARTS = 128
"""Maximum number of tensors of one launch (torch, Shape.cu, CAT_ARRAY_BATCH_SIZE)."""

SOURCE = "bytes twice at 0.79 of DRAM bandwidth (paper, III-B-1b; its program's constant)"

FORMULA = "2 x bytes / (0.79 DRAM bandwidth) (paper, III-B-1b; its program's constant)"


def cat(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price a concatenation along an axis: every byte is read and written once."""
    if not op.outputs:
        return None
    result = op.outputs[0]
    parts = next((len(v) for v in op.operands if isinstance(v, tuple)), 1)
    if machine.paper:
        time = machine.stream(2 * result.nbytes, SHARE)
        return (work("concat", f"cat {shape_text(result)}", time, NEAR, FORMULA),)
    count = maximum(-(-parts // MAX_PARTS), 1)
    share, start = MEASURED_RATES.get(machine.sheet.architecture, (SHARE, START))
    time = (
        maximum(machine.stream(2 * result.nbytes, share), _offset_time(op, result, machine)) / count
    )
    time += machine.start + start
    return (work("concat", f"cat {shape_text(result)}", time, NEAR, FORMULA),) * count


def _offset_time(op: Op, result: Tensor, machine: Machine) -> float:
    """Return the minimum microseconds in which the units compute the offsets of all elements."""
    strided = [t for t in tensors_in(op.operands) if not t.contiguous and t.rank]
    rate = DIVISIONS_PER_CYCLE / strided[0].rank if strided else HALVES_PER_CYCLE
    if not strided and result.itemsize != 2:
        return 0.0
    return machine.cycles(result.numel / (rate * machine.sheet.sms))


def _split(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price new tensors from parts of a tensor: a strided copy for each."""
    kernels = []
    for part in op.outputs:
        time = streaming(machine, 2 * traffic(part), elements=part.numel)
        if machine.sheet.architecture in WHOLE_SHARES and not machine.paper:
            time = strided_time(part, part, machine) + machine.start
        kernels.append(work("concat", f"part {shape_text(part)}", time, FEW, ROOFLINE))
    return tuple(kernels) or None


def _repeat(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price repeats of a tensor: the tensor is read once, the result is written."""
    if not op.outputs or not op.inputs:
        return None
    source, result = op.inputs[0], op.outputs[0]
    time = streaming(machine, traffic(source) + traffic(result), elements=result.numel)
    return (work("concat", f"{op.base} {shape_text(result)}", time, NEAR, ROOFLINE),)


def _sharded(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price copies of sharded parameters into or out of a collective's buffer."""
    parts = tensors_in(op.operands[:1])
    read_bytes = sum(part.nbytes for part in parts)
    outs = [t for t in op.inputs if t.name in op.written]
    written_bytes = read_bytes if op.base == "all_gather_copy_in" else sum(t.nbytes for t in outs)
    time = streaming(
        machine, read_bytes + written_bytes, elements=sum(part.numel for part in parts)
    )
    return (work("concat", f"{op.base}, {read_bytes} B", time, NEAR, ROOFLINE),)


RULES: dict[str, Rule] = {
    **{f"fsdp.{n}": _sharded for n in ("all_gather_copy_in", "split_with_sizes_copy", "chunk_cat")},
    **{
        f"aten.{n}": cat
        for n in (
            "cat",
            "concat",
            "concatenate",
            "stack",
            "_cat",
            "hstack",
            "vstack",
            "_stack",
            "_chunk_cat",
            "block_diag",
            "_pack_padded_sequence",
            "_pack_padded_sequence_backward",
        )
    },
    **{f"aten.{n}": _split for n in ("split_copy", "split_with_sizes_copy", "unbind_copy")},
    **{f"aten.{n}": _repeat for n in ("repeat", "tile")},
}


def _bench(bench: Bench) -> Call:
    torch = bench.torch
    parts = [bench.values(bench["rows"], bench["cols"]) for _ in range(bench["parts"])]
    if bench.case.op == "cat":
        return lambda: torch.cat(parts, 1)
    tensor = torch.cat(parts, 1)
    return lambda: torch.split_copy(tensor, bench["cols"], 1)


SWEEPS = {
    "concat": Sweep(
        dict.fromkeys(("cat", "split_copy"), _bench),
        {"parts": (2, 160), "rows": (64, 2**12), "cols": (8, 256)},
    )
}
