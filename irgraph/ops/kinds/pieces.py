"""Axes made of pieces, one behind the other: cut off, taken out, and joined again."""

from __future__ import annotations

from irgraph.ir.tensor import Shape
from irgraph.ops.call import Call
from irgraph.ops.meaning import (
    IN_FIRST,
    ONE,
    OPAQUE,
    Arguments,
    Axes,
    Axis,
    Joined,
    LinearSets,
    Meaning,
    Merged,
    Piece,
)
from irgraph.ops.operator import Trait, operators
from irgraph.ops.patterns import linear_sets, new_results, view_meaning
from irgraph.ops.shapes import letters, replaced, without

SPLIT_ARGUMENTS = ("split_size", "split_sizes")
"""Arguments that are the lengths of pieces."""


def _selected(call: Call) -> Meaning | None:
    """Return the meaning of ``select``: one index of an axis."""
    operand = call.inputs[0]
    axes = letters(operand.rank)
    index = call.axis("dim", operand.rank)
    if not axes or not _is_valid(call, operand.shape[index]):
        return None
    piece = Piece(index, call.number("index", 0))
    count = len(call.outputs)
    return view_meaning(
        axes,
        [without(axes, {index})] * count,
        pieces=[piece] * count,
        bounded=frozenset({axes[index]}),
    )


def _is_valid(call: Call, size: int) -> bool:
    """Return whether the argument ``index`` is the index of an element."""
    index = call.number("index", 0)
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
        fixed=frozenset({axes[index]}),
        sizes={axes[index]: count},
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
    is_full = length == size
    result = axes if is_full else replaced(axes, index, "piece")
    piece = Piece(index, call.number("start", 0), call.number("step", 1))
    count = len(call.outputs)
    return view_meaning(
        axes,
        [result] * count,
        pieces=[piece] * count,
        sizes={} if is_full else {"piece": length},
        bounded=frozenset({axes[index]}),
    )


def _slice_length(call: Call, size: int) -> int | None:
    """Return the length of a slice of an axis, ``None`` if its bounds are no numbers."""
    start = call.arguments.get("start")
    end = call.arguments.get("end")
    step = call.number("step", 1)
    if not isinstance(start, int | None) or not isinstance(end, int | None):
        return None
    if step < 1:
        return None
    if "length" not in call.arguments:
        return len(range(size)[start:end:step])
    length = call.number("length", -1)
    first = call.number("start", 0)
    if first < 0:
        first += size
    is_inside = length >= 0 and 0 <= first <= size - length
    return length if is_inside else None


class _Pieces:
    """The pieces into which a call splits an axis.

    Attributes:
        letters: the letter of each piece.
        lengths: the length of each piece.
        arguments: the pieces whose lengths are arguments.
    """

    def __init__(self, call: Call, index: int) -> None:
        operand = call.inputs[0]
        results = [tensor for tensor in call.outputs if tensor.rank == operand.rank]
        self.arguments: Arguments = {}
        self.lengths = [int(tensor.shape[index]) for tensor in results]
        self.letters = _numbered(len(self.lengths))
        for name in SPLIT_ARGUMENTS:
            value = call.arguments.get(name)
            if isinstance(value, tuple):
                self._set_list(name, call.numbers(name))
            elif isinstance(value, int) and value > 0:
                self._set_length(name, value, int(operand.shape[index]))

    def _set_list(self, name: str, lengths: Shape) -> None:
        self.lengths = list(lengths)
        self.letters = _numbered(len(lengths))
        for index, letter in enumerate(self.letters):
            self.arguments[name, index] = letter

    def _set_length(
        self,
        name: str,
        length: int,
        total: int,
    ) -> None:
        starts = range(0, total, length)
        self.lengths = [min(length, total - start) for start in starts]
        self.letters = _numbered(len(self.lengths))
        for index, size in enumerate(self.lengths):
            if size == length:
                self.letters[index] = "piece"
        self.arguments[name, -1] = "piece"


def _numbered(count: int) -> list[str]:
    return list(letters(count, "piece"))


def _split(call: Call) -> Meaning | None:
    """Return the meaning of ``split``: the pieces join to the operand's axis."""
    operand = call.inputs[0]
    if not operand.rank:
        return None
    axes = letters(operand.rank)
    index = call.axis("dim", operand.rank)
    pieces = _Pieces(call, index)
    count = len(pieces.lengths)
    total = int(operand.shape[index])
    if not count or count != len(call.outputs) or sum(pieces.lengths) != total:
        return None
    axis = Joined(tuple(pieces.letters))
    return view_meaning(
        replaced(axes, index, axis),
        [replaced(axes, index, letter) for letter in pieces.letters],
        arguments=pieces.arguments,
        sizes=dict(zip(pieces.letters, pieces.lengths, strict=True)),
        # the number of pieces depends on the size
        bounded=frozenset(pieces.letters),
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
            piece = f"piece{number}"
            pieces.append(piece)
            operands.append(replaced(axes, index, piece))
        elif tensor.shape == (0,):
            # torch leaves an empty tensor of one axis out
            operands.append((OPAQUE,))
        else:
            return None
    axis = Joined(tuple(pieces))
    return Meaning(
        operands=tuple(operands),
        results=new_results(call, replaced(axes, index, axis)),
        linear=_in_all(call),
        rearranges=True,
    )


def _in_all(call: Call) -> LinearSets:
    """Return the linearity in all operands at once."""
    return (frozenset(range(len(call.inputs))),)


def _stacked(call: Call) -> Meaning | None:
    """Return the meaning of ``stack``: a new axis has an element for each operand."""
    ranks = {tensor.rank for tensor in call.inputs}
    if len(ranks) != 1:
        return None
    rank = ranks.pop()
    index = call.axis("dim", rank + 1)
    axes = letters(rank)
    count = len(call.inputs)
    return Meaning(
        operands=(axes,) * count,
        results=new_results(call, (*axes[:index], "count", *axes[index:])),
        linear=_in_all(call),
        rearranges=True,
        sizes={"count": count},
        fixed=frozenset({"count"}),
    )


def _select_gradient(call: Call) -> Meaning | None:
    """Return the meaning of the gradient of ``select``: zeros but for one index of an axis."""
    sizes = call.numbers("input_sizes")
    axes = letters(len(sizes))
    index = call.axis("dim", len(axes))
    if not axes or not _is_valid(call, sizes[index]):
        return None
    axis = frozenset({axes[index]})
    return Meaning(
        operands=(without(axes, {index}),),
        results=new_results(call, axes),
        mixed=axis,
        linear=IN_FIRST,
        arguments=_input_sizes(axes),
        bounded=axis,
    )


def _input_sizes(axes: Axes) -> Arguments:
    arguments: Arguments = {}
    for index, axis in enumerate(axes):
        arguments["input_sizes", index] = axis
    return arguments


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
        results=new_results(call, axes),
        mixed=frozenset({axes[index], "piece"}),
        linear=IN_FIRST,
        arguments=_input_sizes(axes),
        sizes={"piece": length},
        bounded=frozenset({axes[index]}),
        # the bounds follow the piece
        sizes_by_torch=True,
    )


def _scattered(call: Call) -> Meaning | None:
    """Return the meaning of ``select_scatter`` and ``slice_scatter``: a piece is replaced."""
    target = call.inputs[0]
    if not target.rank:
        return None
    axes = letters(target.rank)
    index = call.axis("dim", target.rank)
    size = int(target.shape[index])
    source = without(axes, {index})
    sizes: dict[str, int] = {}
    if call.op.base == "slice_scatter":
        length = _slice_length(call, size)
        if length is None:
            return None
        source = replaced(axes, index, "piece")
        sizes = {"piece": length}
    elif not _is_valid(call, size):
        return None
    return Meaning(
        operands=(axes, source),
        results=new_results(call, axes),
        mixed=frozenset({axes[index], "piece"}),
        linear=linear_sets(call, ("self src",)),
        sizes=sizes,
        bounded=frozenset({axes[index]}),
        sizes_by_torch=True,
    )


def _repeated(call: Call) -> Meaning | None:
    """Return the meaning of ``repeat``: an axis is its copies, one behind the other."""
    counts = call.numbers("repeats")
    first = len(counts) - call.inputs[0].rank
    if first < 0:
        return None
    axes: list[Axis] = []
    arguments: Arguments = {}
    for index, count in enumerate(counts):
        letter = f"d{index - first}"
        if count == 1:
            axes.append(letter if index >= first else ONE)
            continue
        arguments["repeats", index] = f"n{index}"
        axes.append(Merged((f"n{index}", letter)) if index >= first else f"n{index}")
    return Meaning(
        operands=(letters(call.inputs[0].rank),),
        results=new_results(call, tuple(axes)),
        linear=IN_FIRST,
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
