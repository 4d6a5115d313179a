"""New tensors of a given size."""

from __future__ import annotations

from irgraph.ops.call import Call
from irgraph.ops.meaning import Arguments, Meaning, Result
from irgraph.ops.operator import operators
from irgraph.ops.shapes import letters


def _sized(call: Call) -> Meaning | None:
    """Return the meaning of a factory: ``size`` is the shape, operands determine the type only."""
    if len(call.outputs) != 1:
        return None
    sizes = call.numbers("size")
    rank = len(sizes) if "size" in call.arguments else call.outputs[0].rank
    if min(sizes, default=0) < 0:
        return None
    axes = letters(rank, "n")
    arguments: Arguments = {}
    for index in range(len(sizes)):
        arguments["size", index] = axes[index]
    return Meaning(
        operands=tuple(letters(t.rank, f"o{i}_") for i, t in enumerate(call.inputs)),
        results=(Result(axes, frozenset()),),
        arguments=arguments,
        random=call.op.base.startswith("rand"),
        # strides would have to follow
        sizes_by_torch="stride" in call.arguments,
    )


def _counted(call: Call) -> Meaning | None:
    """Return the meaning of ``arange``: numbers from a start to an end, which one letter counts."""
    start = call.number("start", 0)
    end = call.number("end", -1)
    step = call.number("step", 1)
    has_end = isinstance(call.arguments.get("end"), int)
    if len(call.outputs) != 1 or not has_end or step < 1:
        return None
    count = len(range(start, end, step))
    follows = start == 0 and step == 1 and end == count
    return Meaning(
        operands=(),
        results=(Result(("n",)),),
        mixed=frozenset({"n"}),
        arguments={("end", -1): "n"} if follows else {},
        fixed=frozenset() if follows else frozenset({"n"}),
        sizes={"n": count},
    )


def _number(call: Call) -> Meaning:
    return Meaning((), (Result(()),) * len(call.outputs))


OPERATORS = {
    **operators(
        _sized,
        "empty zeros ones full rand randn new_zeros new_empty new_full new_ones empty_strided "
        "new_empty_strided",
    ),
    **operators(_counted, "arange"),
    **operators(_number, "scalar_tensor"),
}
