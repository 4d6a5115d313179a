"""New tensors of a given size."""

from __future__ import annotations

from irgraph.ops.call import Call
from irgraph.ops.meaning import ArgumentKey, Axis, Meaning, Result
from irgraph.ops.operator import operators
from irgraph.ops.shapes import letters


def _sized(call: Call) -> Meaning | None:
    """Return the meaning of a factory: ``size`` is the shape, operands determine the type only."""
    if not call.outputs:
        return None
    (result,) = call.outputs
    axes = letters(result.rank, "n")
    sizes = call.numbers("size")
    arguments: dict[ArgumentKey, Axis] = {("size", i): axes[i] for i in range(len(sizes))}
    return Meaning(
        operands=tuple(letters(t.rank, f"o{i}_") for i, t in enumerate(call.inputs)),
        results=(Result(axes, frozenset()),),
        arguments=arguments,
        random=call.op.base.startswith("rand"),
    )


def _number(call: Call) -> Meaning:
    return Meaning((), (Result(()),) * len(call.outputs))


OPERATORS = {
    **operators(_sized, "empty zeros ones full rand randn new_zeros new_empty new_full new_ones"),
    **operators(_number, "scalar_tensor"),
}
