"""Recurrent layers that cuDNN computes in one call, and torch's fused cells."""

from __future__ import annotations

from costmodels.benchmarks.bench import Bench, Call
from costmodels.benchmarks.sweep import Sweep
from costmodels.formulas.elements import ROOFLINE, streaming
from costmodels.formulas.intervals import FEW, ROUGH
from costmodels.formulas.machine import (
    STARTS,
    Machine,
    Rule,
    members,
    shape_text,
    traffic,
    work,
)
from costmodels.formulas.tiles import Product, tiled_time
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor

SOURCE = (
    "each layer: one product for all steps' inputs, then a product and an element-wise kernel per "
    "step, one after the other (Appleyard et al. 2016); beside four forward passes that DeepBench "
    "printed for TITAN Xp -9 to +45 %"
)

RESIDENT_STARTS, LAYER_START = 3, 18.0
"""Starts of further kernels of a layer whose matrix blocks store, and microseconds of further
kernels of another layer (H100, training rows of the sweep)."""

MAX_RESIDENT_ROWS, RESIDENT_STEP, RESIDENT_UNIT = 384, 0.25, 0.005
"""Maximum number of rows of a recurrent matrix, units times gates, that blocks store for all steps
in one kernel (cuDNN's ``RNN_blockPersist_fp``); microseconds of such a step, and additionally of
each unit (H100 SXM 80 GB, f32, forward: 0.25 to 0.75 a step over 24 to 243 steps). Steps of larger
ones take 2 to 6, like products."""

BACKWARD = 2
"""Ratio of the gradient's products, of data and weights, to those of the forward pass."""


def _layers(op: Op) -> list[tuple[Tensor, Tensor]]:
    """Return the input matrix and the recurrent matrix of every layer and direction."""
    weights = members(op.operands[1]) if len(op.operands) > 1 else []
    matrices = [t for t in weights if t.rank == 2]
    step = 3 if op.attributes.get("proj_size") else 2
    return list(zip(matrices[::step], matrices[1::step], strict=False))


def _cudnn(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price all layers and directions of a cuDNN call, in sequence."""
    source, layers, hidden = next(iter(op.operands), None), _layers(op), op.attributes.get("hx")
    if not isinstance(source, Tensor) or not isinstance(hidden, Tensor) or not layers:
        return None
    batch = max(int(hidden.shape[-2]), 1)
    steps = max(source.numel // max(batch * int(source.shape[-1]), 1), 1)
    factor = BACKWARD if op.base.endswith("backward") else 1
    time = sum(_layer(*pair, batch, steps, machine) for pair in layers) * factor
    name = f"{op.base.strip('_')} {len(layers)} layers x {steps} steps"
    return (work("recurrent", name, time, ROUGH, SOURCE, outside=True),)


def _layer(
    input_matrix: Tensor, recurrent_matrix: Tensor, batch: int, steps: int, machine: Machine
) -> float:
    """Return microseconds of one layer in one direction."""
    gates, size = int(recurrent_matrix.shape[0]), recurrent_matrix.itemsize
    inputs = Product(
        1, batch * steps, gates, int(input_matrix.shape[1]), recurrent_matrix.dtype, "tn"
    )
    step = Product(1, batch, gates, int(recurrent_matrix.shape[1]), recurrent_matrix.dtype, "tn")
    cell = machine.stream(2 * batch * gates * size) + machine.start
    step_time = tiled_time(step, machine)[0] + machine.start + cell
    input_time = tiled_time(inputs, machine)[0]
    if machine.sheet.architecture not in STARTS:
        return input_time + steps * step_time
    if gates <= MAX_RESIDENT_ROWS:
        resident = RESIDENT_STEP + RESIDENT_UNIT * int(recurrent_matrix.shape[1])
        return input_time + RESIDENT_STARTS * machine.start + steps * min(step_time, resident)
    return input_time + LAYER_START + steps * step_time


def _cell(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price a fused cell: gates and states are moved once."""
    nbytes = traffic(*op.inputs, *op.outputs)
    if not op.inputs:
        return None
    name = f"{op.base.strip('_')} {shape_text(op.inputs[0])}"
    return (work("recurrent", name, streaming(machine, nbytes), FEW, ROOFLINE),)


CELLS = (
    "_thnn_fused_lstm_cell", "_thnn_fused_lstm_cell_backward",
    "_thnn_fused_lstm_cell_backward_impl", "_thnn_fused_gru_cell", "_thnn_fused_gru_cell_backward",
)  # fmt: skip

RULES: dict[str, Rule] = {
    "aten._cudnn_rnn": _cudnn,
    "aten._cudnn_rnn_backward": _cudnn,
    **{f"aten.{name}": _cell for name in CELLS},
}


def _bench(bench: Bench) -> Call:
    torch = bench.torch
    kind = torch.nn.LSTM if bench.case.op == "lstm" else torch.nn.GRU
    layer = kind(bench["inputs"], bench["hidden"], device=bench.device, dtype=bench.dtype)
    data = bench.values(bench["steps"], bench["batch"], bench["inputs"])

    def call() -> object:
        with torch.no_grad():
            return layer(data)

    return call


SWEEPS = {
    "recurrent": Sweep(
        dict.fromkeys(("lstm", "gru"), _bench),
        {"batch": (1, 256), "steps": (4, 256), "inputs": (8, 512), "hidden": (8, 512)},
        max_product=2.0**31,
    )
}
