"""Axes made of pieces, one behind the other: cut off, taken out, and joined again."""

from __future__ import annotations

from irgraph.ops.call import Call
from irgraph.ops.meaning import (
    ONE,
    OPAQUE,
    ArgumentKey,
    Axes,
    Axis,
    Joined,
    Meaning,
    Merged,
    Piece,
    Result,
)
from irgraph.ops.operator import Trait, operators
from irgraph.ops.patterns import linear_sets, view_meaning
from irgraph.ops.shapes import letters, replaced, without


def _selected(call: Call) -> Meaning | None:
    """Return the meaning of ``select``: one index of an axis."""
    axes = letters(call.inputs[0].rank)
    index = call.axis("dim", len(axes))
    element = call.number("index", 0)
    if not axes or not _is_valid(element, call.inputs[0].shape[index]):
        return None
    return view_meaning(
        axes,
        [without(axes, {index})] * len(call.outputs),
        pieces=[Piece(index, element)] * len(call.outputs),
        bounded=frozenset({f"d{index}"}),
    )


def _is_valid(index: int, size: int) -> bool:
    return -size <= index < size


def _unbound(call: Call) -> Meaning | None:
    """Return the meaning of ``unbind``: a result for each index of an axis."""
    axes = letters(call.inputs[0].rank)
    if not axes:
        return None
    index = call.axis("dim", len(axes))
    count = len(call.outputs)
    return view_meaning(
        axes,
        [without(axes, {index})] * count,
        pieces=[Piece(index, number) for number in range(count)],
        fixed=frozenset({f"d{index}"}),
        sizes={f"d{index}": count},
    )


def _sliced(call: Call) -> Meaning | None:
    """Return the meaning of ``slice`` and ``narrow``: one axis is a piece of the operand's."""
    operand = call.inputs[0]
    if not operand.rank:
        return None
    axes = letters(operand.rank)
    index = call.axis("dim", operand.rank)
    size = int(operand.shape[index])
    length = _slice_length(call, size)
    if length is None:
        return None
    is_whole = length == size
    return view_meaning(
        axes,
        [axes if is_whole else replaced(axes, index, "piece")] * len(call.outputs),
        pieces=[Piece(index, call.number("start", 0), call.number("step", 1))] * len(call.outputs),
        sizes={} if is_whole else {"piece": length},
        bounded=frozenset({f"d{index}"}),
    )


def _slice_length(call: Call, size: int) -> int | None:
    """Return the length of a slice of an axis, ``None`` if its bounds are no numbers."""
    start, end = (call.arguments.get(name) for name in ("start", "end"))
    step = call.number("step", 1)
    if not isinstance(start, int | None) or not isinstance(end, int | None) or step < 1:
        return None
    if "length" not in call.arguments:
        return len(range(size)[start:end:step])
    length = call.number("length", -1)
    first = call.number("start", 0)
    first += size if first < 0 else 0
    return length if length >= 0 and 0 <= first <= size - length else None


def _split(call: Call) -> Meaning | None:
    """Return the meaning of ``split``: the pieces join to the operand's axis."""
    rank = call.inputs[0].rank
    if not rank:
        return None
    index = call.axis("dim", rank)
    total = int(call.inputs[0].shape[index])
    arguments: dict[ArgumentKey, Axis] = {}
    lengths = [int(result.shape[index]) for result in call.outputs if result.rank == rank]
    pieces = [f"piece{number}" for number in range(len(lengths))]
    for name in ("split_size", "split_sizes"):
        value = call.arguments.get(name)
        if isinstance(value, tuple):
            lengths = list(call.numbers(name))
            pieces = [f"piece{number}" for number in range(len(lengths))]
            arguments.update({(name, i): piece for i, piece in enumerate(pieces)})
        elif isinstance(value, int) and value > 0:
            lengths = [min(value, total - start) for start in range(0, total, value)]
            names = enumerate(lengths)
            pieces = ["piece" if n == value else f"piece{i}" for i, n in names]
            arguments[name, -1] = "piece"
    if not lengths or len(lengths) != len(call.outputs) or sum(lengths) != total:
        return None
    axes = letters(rank)
    operand: Axes = (*axes[:index], Joined(tuple(pieces)), *axes[index + 1 :])
    return view_meaning(
        operand,
        [replaced(axes, index, piece) for piece in pieces],
        arguments=arguments,
        sizes=dict(zip(pieces, lengths, strict=True)),
        # the number of pieces depends on the size
        bounded=frozenset(pieces),
        sizes_by_torch="chunk" in call.op.base,
    )


def _concatenation(call: Call) -> Meaning | None:
    """Return the meaning of ``cat``: the pieces join to the result's axis."""
    rank = max((tensor.rank for tensor in call.inputs), default=0)
    if not rank:
        return None
    index = call.axis("dim", rank)
    axes = letters(rank)
    operands: list[Axes] = []
    pieces: list[str] = []
    for number, tensor in enumerate(call.inputs):
        if tensor.rank == rank:
            pieces.append(f"piece{number}")
            operands.append(replaced(axes, index, pieces[-1]))
        elif tensor.shape == (0,):
            # torch leaves an empty tensor of one axis out
            operands.append((OPAQUE,))
        else:
            return None
    total: Axes = (*axes[:index], Joined(tuple(pieces)), *axes[index + 1 :])
    return Meaning(
        operands=tuple(operands),
        results=(Result(total),) * len(call.outputs),
        linear=(frozenset(range(len(operands))),),
        rearranges=True,
    )


def _stacked(call: Call) -> Meaning | None:
    """Return the meaning of ``stack``: a new axis has an element for each operand."""
    ranks = {tensor.rank for tensor in call.inputs}
    if len(ranks) != 1:
        return None
    rank = ranks.pop()
    index = call.axis("dim", rank + 1)
    axes = letters(rank)
    return Meaning(
        operands=(axes,) * len(call.inputs),
        results=(Result((*axes[:index], "count", *axes[index:])),) * len(call.outputs),
        linear=(frozenset(range(len(call.inputs))),),
        rearranges=True,
        sizes={"count": len(call.inputs)},
        fixed=frozenset({"count"}),
    )


def _select_gradient(call: Call) -> Meaning | None:
    """Return the meaning of the gradient of ``select``: zeros but for one index of an axis."""
    sizes = call.numbers("input_sizes")
    axes = letters(len(sizes))
    index = call.axis("dim", len(axes))
    if not axes or not _is_valid(call.number("index", 0), sizes[index]):
        return None
    return Meaning(
        operands=(without(axes, {index}),),
        results=(Result(axes),) * len(call.outputs),
        mixed=frozenset({f"d{index}"}),
        linear=(frozenset({0}),),
        arguments={("input_sizes", i): axis for i, axis in enumerate(axes)},
        bounded=frozenset({f"d{index}"}),
    )


def _slice_gradient(call: Call) -> Meaning | None:
    """Return the meaning of the gradient of ``slice``: zeros but for a piece of an axis."""
    sizes = call.numbers("input_sizes")
    axes = letters(len(sizes))
    if not axes:
        return None
    index = call.axis("dim", len(axes))
    length = _slice_length(call, sizes[index])
    if length is None:
        return None
    return Meaning(
        operands=(replaced(axes, index, "piece"),),
        results=(Result(axes),) * len(call.outputs),
        mixed=frozenset({f"d{index}", "piece"}),
        linear=(frozenset({0}),),
        arguments={("input_sizes", i): axis for i, axis in enumerate(axes)},
        sizes={"piece": length},
        bounded=frozenset({f"d{index}"}),
        # the bounds follow the piece
        sizes_by_torch=True,
    )


def _scattered(call: Call) -> Meaning | None:
    """Return the meaning of ``select_scatter`` and ``slice_scatter``: a piece is replaced."""
    rank = call.inputs[0].rank
    axes = letters(rank)
    if not rank:
        return None
    index = call.axis("dim", rank)
    size = int(call.inputs[0].shape[index])
    source = without(axes, {index})
    sizes: dict[str, int] = {}
    if call.op.base == "slice_scatter":
        length = _slice_length(call, size)
        if length is None:
            return None
        source = replaced(axes, index, "piece")
        sizes = {"piece": length}
    elif not _is_valid(call.number("index", 0), size):
        return None
    return Meaning(
        operands=(axes, source),
        results=(Result(axes),) * len(call.outputs),
        mixed=frozenset({f"d{index}", "piece"}),
        linear=linear_sets(call, ("self src",)),
        sizes=sizes,
        bounded=frozenset({f"d{index}"}),
        sizes_by_torch=True,
    )


def _repeated(call: Call) -> Meaning | None:
    """Return the meaning of ``repeat``: an axis is its copies, one behind the other."""
    counts = call.numbers("repeats")
    first = len(counts) - call.inputs[0].rank
    if first < 0:
        return None
    axes: list[Axis] = []
    arguments: dict[ArgumentKey, Axis] = {}
    for index, count in enumerate(counts):
        letter = f"d{index - first}"
        if count == 1:
            axes.append(letter if index >= first else ONE)
            continue
        arguments["repeats", index] = f"n{index}"
        axes.append(Merged((f"n{index}", letter)) if index >= first else f"n{index}")
    return Meaning(
        operands=(letters(call.inputs[0].rank),),
        results=(Result(tuple(axes)),) * len(call.outputs),
        linear=(frozenset({0}),),
        arguments=arguments,
    )


OPERATORS = {
    **operators(_selected, "select select_copy"),
    **operators(_unbound, "unbind unbind_copy"),
    **operators(_sliced, "slice narrow", traits=[Trait.SLICE]),
    **operators(_sliced, "slice_copy narrow_copy"),
    **operators(
        _split,
        "split split_with_sizes chunk unsafe_split unsafe_split_with_sizes unsafe_chunk "
        "split_copy split_with_sizes_copy",
        text="a+b c -> a c, b c",
    ),
    **operators(_concatenation, "cat concat concatenate", text="a c, b c -> a+b c"),
    **operators(_stacked, "stack"),
    **operators(_select_gradient, "select_backward"),
    **operators(_slice_gradient, "slice_backward"),
    **operators(_scattered, "select_scatter slice_scatter"),
    **operators(_repeated, "repeat", text="a -> (n a)"),
}
