"""Device work measured in a trace: the first choice for an op's time on the trace's card."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from costmodels.devices.library import recorded_sheet, same_model
from costmodels.devices.sheet import DeviceSheet
from irgraph.ir.cost import Kernel
from irgraph.ir.measured_times import op_time
from irgraph.ir.op import Op
from irgraph.ir.quantity import Quantity

SOURCE = "device work of this op in a trace of this card"


def is_card(sheet: DeviceSheet, card: str) -> bool:
    """Return whether a sheet represents a recorded card.

    A card with its own sheet is represented by this sheet, or by one that differs only in memory
    size; a card without a sheet is represented by any variant of its model.
    """
    if not card or not same_model(sheet.name, card):
        return False
    card_sheet = recorded_sheet(card)
    return card_sheet is None or (
        card_sheet.clock_mhz.datasheet,
        card_sheet.dram_gbs.datasheet,
    ) == (
        sheet.clock_mhz.datasheet,
        sheet.dram_gbs.datasheet,
    )


def is_measured(op: Op, launches_nothing: Callable[[Op], bool]) -> bool:
    """Return whether all device work of an op and of its inner ops was measured.

    ``launches_nothing`` recognises leaves without kernels, which are absent from traces.
    """
    if op.body:
        return all(is_measured(child, launches_nothing) for child in op.body)
    return op_time(op) is not None or launches_nothing(op)


def measured_kernels(
    op: Op, model: Callable[[Op], tuple[Kernel, ...] | None]
) -> tuple[Kernel, ...]:
    """Return the measured work of an op and of all its inner ops.

    ``model`` returns an op's kernels by cost models, which distinguish copies from kernels.
    """
    time = op_time(op)
    own_kernels = () if time is None else _split(op, time, model(op) or ())
    inner_kernels = (kernel for child in op.body for kernel in measured_kernels(child, model))
    return (*own_kernels, *inner_kernels)


def _split(op: Op, time: Quantity, modelled: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """Divide a measured time among the counted launches, in the ratio of the models' times."""
    kernel_count = op.notes.get("kernels")
    count = kernel_count if isinstance(kernel_count, int) else len(modelled) or 1
    total = sum(kernel.time for kernel in modelled)
    # The models have another number of launches than was counted: only their copies are retained,
    # and the time is divided equally.
    if len(modelled) != count or not total:
        longest = max(modelled, key=lambda k: k.time, default=Kernel(op.name, "measured", 0.0))
        original, copies = modelled, [k for k in modelled if k.launch != "kernel"][:count]
        plain_kernel = Kernel(op.name, longest.family, 0.0)
        modelled = (*copies, *[plain_kernel] * (count - len(copies)))
        missing_bytes = sum(k.link_bytes for k in original) - sum(k.link_bytes for k in modelled)
        modelled = tuple(replace(kernel, time=1.0) for kernel in modelled)
        first = [replace(k, link_bytes=k.link_bytes + missing_bytes) for k in modelled[:1]]
        modelled = (*first, *modelled[1:])
        total = float(count)
    return tuple(
        replace(
            kernel,
            time=time.value * kernel.time / total,
            spread=time.spread * kernel.time / total,
            by="measured",
            outside=False,
            formula=SOURCE,
            power=0.0,
        )
        for kernel in modelled
    )
