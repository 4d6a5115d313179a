"""Device work that a trace measured: the first choice for an op's time on the trace's card."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from costmodels.devices.library import recorded_sheet, same_model
from costmodels.devices.sheet import DeviceSheet
from irgraph.ir.cost import Kernel
from irgraph.ir.measured import op_time
from irgraph.ir.op import Op
from irgraph.ir.quantity import Quantity

SOURCE = "device work of this op in a trace of this card"


def is_card(sheet: DeviceSheet, card: str) -> bool:
    """Return whether a sheet stands for a recorded card.

    A card with a sheet of its own is that one, or one that differs in memory size alone; one
    without is any variant of its model.
    """
    if not card or not same_model(sheet.name, card):
        return False
    own = recorded_sheet(card)
    return own is None or (own.clock_mhz.datasheet, own.dram_gbs.datasheet) == (
        sheet.clock_mhz.datasheet,
        sheet.dram_gbs.datasheet,
    )


def is_measured(op: Op, free: Callable[[Op], bool]) -> bool:
    """Return whether all device work of an op and of those below it was measured.

    ``free`` tells leaves that launch nothing, of which traces have nothing to say.
    """
    if op.body:
        return all(is_measured(child, free) for child in op.body)
    return op_time(op) is not None or free(op)


def measured_kernels(
    op: Op, model: Callable[[Op], tuple[Kernel, ...] | None]
) -> tuple[Kernel, ...]:
    """Return the measured work of an op and all below it.

    ``model`` returns what cost models know of an op, which tell copies from kernels.
    """
    time = op_time(op)
    own = () if time is None else _split(op, time, model(op) or ())
    below = (kernel for child in op.body for kernel in measured_kernels(child, model))
    return (*own, *below)


def _split(op: Op, time: Quantity, modelled: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """Share a measured time among the launches that were counted, as models would share it."""
    noted = op.notes.get("kernels")
    count = noted if isinstance(noted, int) else len(modelled) or 1
    total = sum(kernel.time for kernel in modelled)
    # The models know of other launches than were counted: only which of them are copies is kept,
    # and the time is shared equally.
    if len(modelled) != count or not total:
        longest = max(modelled, key=lambda k: k.time, default=Kernel(op.name, "measured", 0.0))
        launched, copies = modelled, [k for k in modelled if k.launch != "kernel"][:count]
        plain = Kernel(op.name, longest.family, 0.0)
        modelled = (*copies, *[plain] * (count - len(copies)))
        lost = sum(k.link_bytes for k in launched) - sum(k.link_bytes for k in modelled)
        modelled = tuple(replace(kernel, time=1.0) for kernel in modelled)
        first = [replace(k, link_bytes=k.link_bytes + lost) for k in modelled[:1]]
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
        )
        for kernel in modelled
    )
