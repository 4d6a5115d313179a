"""Layer, batch and group normalisation."""

from __future__ import annotations

from costmodels.elements import ROOFLINE, streaming
from costmodels.machine import Machine, Rule, first_tensor, shape_text, traffic, work
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op

FORWARD_PASSES, BACKWARD_PASSES = 3, 5
"""Times that the data is moved: read for the statistics, read and written to normalise; the
gradient reads data and gradient twice, for the sums and for the result, and writes once."""

FORMULA = f"{ROOFLINE}; two passes, as their statistics need"


def _norm(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price layer normalisation forward: statistics stay on the chip, one read and one write."""
    target = first_tensor(op)
    if target is None:
        return None
    name = f"{op.base} {shape_text(target)}"
    columns = int(target.shape[-1]) if target.rank else 1
    rows = target.numel // max(columns, 1)
    told = machine.ask("layer_norm", name, rows=rows, cols=columns, dtype=target.dtype)
    if told:
        return (told,)
    return (work("norm", name, streaming(machine, 2 * traffic(target)), 0.4, ROOFLINE),)


def _two_passes(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    target = first_tensor(op)
    if target is None:
        return None
    backward = op.base.endswith(("backward", "backward_impl"))
    passes = BACKWARD_PASSES if backward else FORWARD_PASSES
    time = streaming(machine, passes * traffic(target))
    return (work("norm", f"{op.base} {shape_text(target)}", time, 0.4, FORMULA),)


TWO_PASSES = (
    "native_layer_norm_backward", "native_batch_norm", "native_batch_norm_backward",
    "_native_batch_norm_legit", "_batch_norm_with_update", "batch_norm_backward",
    "cudnn_batch_norm", "cudnn_batch_norm_backward", "native_group_norm",
    "native_group_norm_backward",
)  # fmt: skip

RULES: dict[str, Rule] = {
    "aten.native_layer_norm": _norm,
    "aten._fused_rms_norm": _norm,
    **{f"aten.{name}": _two_passes for name in TWO_PASSES},
}
