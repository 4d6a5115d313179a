"""Parameters of quantised ops, prepared from their sources."""

from __future__ import annotations

import torch

from irgraph.execute.torch_values import DTYPES, Torch
from irgraph.ir.narrow.ops import GROUP, LAYER_FORMATS, MAX_VALUES, UNSCALED
from irgraph.ir.narrow.prepared import ROWS, SCALE, WEIGHT, Prepared
from irgraph.ops.references.narrow import MIN_LARGEST, pad, round_rows, steps_of
from irgraph.ops.references.rows import scale_of, to_format


def prepare(prepared: Prepared, source: Torch) -> Torch:
    """Return the value of a prepared parameter, from its source [rows, columns]."""
    if prepared.part == ROWS:
        return to_format(source, prepared.format)
    if prepared.part == SCALE:
        return scale_of(source.float(), prepared.format)
    source = source[slice(*prepared.rows)]
    if prepared.format == "i4":
        steps, scales = quantize_groups(source)
        return _pack_halves(steps) if prepared.part == WEIGHT else scales
    if prepared.format in UNSCALED:
        return source.to(DTYPES[prepared.format]).t()
    steps, scales = round_rows(source, prepared.format)
    if prepared.part != WEIGHT:
        return scales
    layer_format, (outputs, inputs) = LAYER_FORMATS[prepared.format], source.shape
    return pad(
        steps, (0, -inputs % layer_format.depth_step, 0, -outputs % layer_format.output_step)
    ).t()


def squared_error(values: Torch, largest: float) -> float:
    """Return the sum of squared errors of values in ``i8`` with a given range."""
    step = largest / MAX_VALUES["i8"]
    nearest = steps_of(values / step, "i8").float() * step
    return float((nearest - values).double().square().sum())


def quantize_groups(source: Torch) -> tuple[Torch, Torch]:
    """Return a weight [N, K] in steps of 0 to 15, and bf16 scales and zeros [K / 32, N, 2].

    Both sizes are padded. A step q represents (q - 8) * scale + zero, as in torch's kernels.
    """
    layer_format, (outputs, inputs) = LAYER_FORMATS["i4"], source.shape
    padded = torch.nn.functional.pad(
        source.float(),
        (0, -inputs % layer_format.depth_step, 0, -outputs % layer_format.output_step),
    )
    groups = padded.unflatten(1, (-1, GROUP))
    low, high = groups.amin(2), groups.amax(2)
    scale = ((high - low) / 15).clamp(min=MIN_LARGEST).bfloat16()
    zero = (low + 8 * scale.float()).bfloat16()
    distances = (groups - zero.float().unsqueeze(2)) / scale.float().unsqueeze(2)
    steps = (distances + 8).round().clamp(0, 15).to(torch.uint8)
    return steps.flatten(1), torch.stack([scale, zero], -1).transpose(0, 1).contiguous()


def round_to_groups(source: Torch) -> Torch:
    """Round a weight [N, K] to ``i4`` and back to f32."""
    steps, scales = quantize_groups(source)
    factors = scales.float().transpose(0, 1).unsqueeze(2)
    values = (steps.unflatten(1, (-1, GROUP)).float() - 8) * factors[..., 0] + factors[..., 1]
    return values.flatten(1)[: source.shape[0], : source.shape[1]].contiguous()


def _pack_halves(steps: Torch) -> Torch:
    """Return steps of four bits packed in pairs, the first one in the low half of a byte."""
    return steps[:, ::2] | steps[:, 1::2] << 4
