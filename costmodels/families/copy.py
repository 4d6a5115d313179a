"""Copies: between host and device, and from one layout or type to another on the device."""

from __future__ import annotations

from msgspec.structs import replace

from costmodels.benchmarks.bench import Bench, Call
from costmodels.benchmarks.sweep import Sweep
from costmodels.formulas.elements import ROOFLINE, streaming, transposed_copy
from costmodels.formulas.intervals import CLOSE, FEW
from costmodels.formulas.machine import Machine, Rule, members, shape_text, traffic, work
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.points.point_values import if_else, minimum, to_float
from irgraph.ir.tensor import Tensor

SOURCE = (
    "bytes / PCIe rate of pinned or pageable memory, plus a start (traced V100 copies); on the "
    "device roofline at 0.8 of DRAM bandwidth (H100: as measured), casts by an element rate"
)

START = 1.8
"""Microseconds of a copy between host and device in addition to its bytes (traced: 20 us for 213
KB, 7.1 for 65 KB, 1 to 3 for a few bytes; H100 SXM 80 GB: 0.7 to the device, 1.4 to the host, 2.3
from 20 KB on)."""

DEVICE_SHARE = 0.8
"""Share of DRAM bandwidth of ``cudaMemcpyAsync`` on the device (traced: 11.9 MB in 18-20 us)."""

ENGINES = {"hopper": (0.99, 2**20, 3.0), "blackwell": (0.99, 2**20, 3.0)}
"""Share of DRAM bandwidth, number of bytes of a long copy, and its additional microseconds, of
other architectures (H100 SXM 80 GB, torch 2.11: 1.7 us for 1.03 MB, 4.7 for 1.97, 19.9 for 25.5,
157 for 233; Blackwell is assumed to equal Hopper)."""

FAST_CASTS = {("f32", "f16"), ("f32", "bf16")}
"""Casts with separate kernels, which run like other elementwise ones (torch 2, Copy.cu)."""

HOST_LINK = "bytes / PCIe bandwidth of the kind of host memory (paper, III-B-1b), plus its start"


MAX_STAGED_BYTES = 65536
"""Maximum number of bytes from pageable memory that are staged in one step, at the pinned rate."""

BUFFER_BYTES = {"hopper": 2**20, "blackwell": 2**20}
"""Bytes of a larger copy that the driver's buffers accept at the pinned rate, by measured
architecture (H100 SXM 80 GB, CUDA 13: 20.8 us for 1.00 MB to the device, 79 for 2.12, 603 for 10.4;
22.8 us for 0.94 MB to the host, 114 for 2.26)."""


def _host_time(nbytes: int, machine: Machine, pinned: bool, to_host: bool) -> float:
    """Return microseconds of a copy between host and device, by the kind of host memory."""
    rate = machine.sheet.host_bandwidth(pinned, to_host)
    buffered_bytes = minimum(
        nbytes, 0 if pinned else BUFFER_BYTES.get(machine.sheet.architecture, 0)
    )
    buffered_time = buffered_bytes / machine.sheet.host_bandwidth(True, to_host)
    return START + (buffered_time + (nbytes - buffered_bytes) / rate) / 1e3


def host_copy(tensor: Tensor, machine: Machine, to_host: bool, waits: bool) -> Kernel:
    """Return a copy between host and device; ``waits``: whether the program waits for it.

    The host always waits for staged copies: from pageable memory beyond 64 KiB, and from the
    device to pageable memory (CUDA, API synchronization behavior).
    """
    is_small = tensor.nbytes <= MAX_STAGED_BYTES
    pinned = machine.pinned or is_small
    waits = waits or not (machine.pinned or (is_small and not to_host))
    if machine.paper:
        time = tensor.nbytes / machine.sheet.host_bandwidth(False) / 1e3
    else:
        time = _host_time(tensor.nbytes, machine, pinned, to_host)
    kind = "pinned" if pinned else "pageable"
    name = f"{'device to host' if to_host else f'{kind} host to device'} {shape_text(tensor)}"
    error = CLOSE if pinned or machine.paper else FEW
    return work(
        "copy",
        name,
        time,
        error,
        HOST_LINK,
        launch="memcpy",
        blocking=waits,
        link_bytes=to_float(tensor.nbytes),
    )


def _engine_time(nbytes: int, machine: Machine) -> float:
    """Return microseconds of ``cudaMemcpyAsync`` on the device that reads and writes bytes."""
    if machine.paper:
        return machine.stream(nbytes, DEVICE_SHARE)
    share, long_bytes, extra_time = ENGINES.get(machine.sheet.architecture, (DEVICE_SHARE, 0, 0.0))
    return (
        machine.stream(nbytes, share)
        + machine.start
        + if_else(nbytes >= 2 * long_bytes, extra_time, 0.0)
    )


def device_copy(source: Tensor, result: Tensor, machine: Machine) -> Kernel:
    """Return a copy on the device: a plain one, a cast, or one that changes the order.

    A cast loads and stores each element individually, by its types (torch 2.11, H100 SXM 80 GB: 1.4
    elements per cycle and multiprocessor, as with computed offsets), except for ``FAST_CASTS``.
    """
    same_layout = source.dense and source.strides == result.strides
    if source.numel == result.numel and not source.contiguous and not same_layout:
        return transposed_copy(source, result, machine)
    name = f"copy {shape_text(result)}"
    nbytes = traffic(source) + traffic(result)
    keeps_order = same_layout or result.contiguous
    if source.dtype == result.dtype and source.numel == result.numel and keeps_order:
        time = _engine_time(nbytes, machine)
        return work("copy", name, time, CLOSE, ROOFLINE, launch="memcpy")
    is_slow_cast = source.dtype != result.dtype and (source.dtype, result.dtype) not in FAST_CASTS
    time = streaming(
        machine, nbytes, elements=result.numel if is_slow_cast or not keeps_order else 0
    )
    return work("copy", name, time, CLOSE, ROOFLINE)


def _on_host(tensor: Tensor) -> bool:
    return tensor.device == "cpu"


def move(source: Tensor, result: Tensor, op: Op, machine: Machine) -> tuple[Kernel, ...]:
    """Return the kernel, if any, that copies a tensor to another, between any devices."""
    if _on_host(source) and _on_host(result):
        return ()
    if _on_host(source) or _on_host(result):
        waits = op.attributes.get("non_blocking") is not True
        return (host_copy(result, machine, _on_host(result), waits),)
    if not result.numel:
        return ()
    kernel = device_copy(source, result, machine)
    crosses_devices = source.device != result.device
    return (replace(kernel, link_bytes=to_float(result.nbytes)) if crosses_devices else kernel,)


def _convert(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price ``to``, ``clone`` and similar ops; an op that returned its operand or a view is free.

    If an op has inner calls and no new result, its inner calls are priced: recordings without
    results do not list the new tensor.
    """
    source = next(iter(op.inputs), None)
    if source is None:
        return None
    new_tensors = [t for t in op.outputs if t.buffer != source.buffer]
    if new_tensors:
        return move(source, new_tensors[0], op, machine)
    return None if op.body and not op.outputs else ()


def _copy_into(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    tensors = members(op.operands)
    return move(tensors[1], tensors[0], op, machine) if len(tensors) >= 2 else None


def _item(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price the read of one value on the host: a copy that the host waits for."""
    source = next(iter(op.inputs), None)
    if source is None or _on_host(source):
        return () if source else None
    return (host_copy(source, machine, to_host=True, waits=True),)


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("aten.to", "aten._to_copy", "aten.clone", "aten.contiguous", "aten.cpu", "aten.cuda",
         "aten.type_as", "aten.alias_copy", "aten.expand_copy", "aten.view_copy", "aten.float",
         "aten.half", "aten.lift", "aten._reshape_copy", "aten.reshape", "aten.flatten",
         "aten.slice_copy", "aten.select_copy", "aten.narrow_copy", "aten.unsqueeze_copy",
         "aten.squeeze_copy", "aten.as_strided_copy", "aten.diagonal_copy", "aten.detach_copy",
         "aten.lift_fresh_copy", "aten._to_dense", "aten._pin_memory", "aten.unfold_copy"),
        _convert,
    ),
    **dict.fromkeys(("aten.copy_", "aten._copy_from"), _copy_into),
    **dict.fromkeys(("aten.item", "aten._local_scalar_dense", "aten.is_nonzero"), _item),
}  # fmt: skip


def _bench(bench: Bench) -> Call:
    torch, op, nbytes = bench.torch, bench.case.op, bench["bytes"]
    bench.spend(3 * nbytes)
    device_tensor = torch.zeros(nbytes, dtype=torch.uint8, device=bench.device)
    if op == "cast":
        return lambda: device_tensor.to(torch.float16)
    if op == "on_device":
        other = torch.zeros_like(device_tensor)
        return lambda: device_tensor.copy_(other)
    pinned = op.endswith("_pinned") and bench.device.startswith("cuda")
    host_tensor = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=pinned)
    target, source = (
        (device_tensor, host_tensor) if op.startswith("to_device") else (host_tensor, device_tensor)
    )
    return lambda: target.copy_(source)


SWEEPS = {
    "copy": Sweep(
        dict.fromkeys(
            ("to_device", "to_device_pinned", "to_host", "to_host_pinned", "on_device", "cast"),
            _bench,
        ),
        {"bytes": (64, 2**28)},
    )
}
