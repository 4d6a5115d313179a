"""What integers must be: row numbers within tables, offsets that increase, lengths that fit.

The rules go by the names of a schema's arguments, which are the same for all lookups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.dim import Dim
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Value, tensors_in
from irgraph.ir.schema import arguments_of, bind, resolve
from irgraph.ir.tensor import Tensor
from irgraph.ir.torch_schemas.score_functions import lookups

COPIES = ("to", "_to_copy", "clone", "contiguous", "copy_", "lift_fresh_copy")
PICKING = (
    "cat", "constant_pad_nd", "flip", "gather", "index", "index_select", "masked_fill",
    "masked_select", "repeat", "repeat_interleave", "roll", "stack", "take", "where",
)  # fmt: skip
"""Ops whose results hold elements of these operands: all but those that say where from."""

WHERE = ("index", "indices", "mask", "condition", "repeats", "value")
"""Arguments of those ops whose elements the results do not hold."""


PERMUTED = 1 << 24
"""Rows of the largest table of which distinct ones are drawn."""


class Range(Struct, frozen=True):
    """Elements of ``tensor`` are at least 0 and below ``below``, or ``besides``, if that is any.

    ``distinct`` if as many differ as can: the step gathers the rows of a sparse gradient, and its
    model has that many.
    """

    tensor: Tensor
    below: int
    besides: int | None = None
    distinct: bool = False


class Starts(Struct, frozen=True):
    """Elements of ``tensor`` are where bags of ``total`` indices start, the first one 0.

    ``closed`` if the last one is the end.
    """

    tensor: Tensor
    total: int
    closed: bool = False


class Lengths(Struct, frozen=True):
    """Elements of ``tensor`` are how long bags are, of ``total`` indices together."""

    tensor: Tensor
    total: int


class Exact(Struct, frozen=True):
    """Elements of ``tensor`` are these, since sizes of the model follow from them."""

    tensor: Tensor
    values: tuple[int, ...]


Rule: TypeAlias = Range | Starts | Lengths | Exact


def integer_rules(graph: Graph) -> dict[str, list[Rule]]:
    """Return, by buffer, what the ops of a graph ask of integers, copies and sums seen through."""
    copies: dict[str, Copies] = {}
    sums: dict[str, tuple[Tensor, Tensor]] = {}
    found: dict[str, list[Rule]] = {}
    distinct = any(op.name == "aten._coalesce" for op in graph.leaves())
    for op in graph.leaves():
        copied = _copied(op, graph)
        if copied is not None:
            copies[copied.made.buffer] = copied
        if op.name == "aten.cumsum":
            sums[op.outputs[0].buffer] = (op.outputs[0], op.inputs[0])
        for rule in _rules(op, graph):
            if isinstance(rule, Range) and distinct:
                rule = replace(rule, distinct=rule.below <= PERMUTED)
            summed = _summed(rule, copies, sums) if isinstance(rule, Starts) else None
            for source in _sources(summed or rule, copies):
                found.setdefault(source.buffer, []).append(replace(summed or rule, tensor=source))
    return found


def _summed(
    rule: Starts, copies: Mapping[str, Copies], sums: Mapping[str, tuple[Tensor, Tensor]]
) -> Lengths | None:
    """Return what starts ask of the lengths whose sums they are, behind a zero.

    So ``KeyedJaggedTensor`` makes them: a row for each key.
    """
    joined = copies.get(rule.tensor.buffer)
    while joined is not None and joined.whole:
        joined = copies.get(joined.held[0].buffer)
    last = joined.held[-1] if joined is not None and len(joined.held) > 1 else None
    while last is not None and last.buffer in copies and copies[last.buffer].whole:
        last = copies[last.buffer].held[0]
    if joined is None or last is None or last.buffer not in sums:
        return None
    _, lengths = sums[last.buffer]
    row, rest = divmod(
        (rule.tensor.offset - joined.made.offset) // rule.tensor.itemsize, joined.made.shape[-1]
    )
    count = lengths.shape[-1]
    if rest or not lengths.contiguous or rule.tensor.numel != count + 1:
        return None
    offset = lengths.offset + row * count * lengths.itemsize
    return Lengths(replace(lengths, shape=(count,), strides=None, offset=offset), rule.total)


class Copies(Struct, frozen=True):
    """A tensor that holds elements of others, in place where it is a ``whole`` copy of one."""

    made: Tensor
    held: tuple[Tensor, ...]
    whole: bool


def _copied(op: Op, graph: Graph) -> Copies | None:
    """Return what an op copies or picks elements from, if that is all that it does."""
    if not op.name.startswith("aten.") or op.base not in (*COPIES, *PICKING):
        return None
    made = [*op.outputs, *(t for t in op.inputs if t.name in op.written)]
    read = [t for t in op.inputs if t.name not in op.written]
    if op.base in PICKING:
        schema = resolve(op, graph.schemas)
        pairs = bind(schema, op) if schema else ()
        read = list(tensors_in(value for argument, value in pairs if argument.name not in WHERE))
    integers = [t for t in read if t.dtype.startswith(("i", "u"))]
    if len(made) != 1 or not integers or any(made[0].buffer == t.buffer for t in read):
        return None
    whole = op.base in COPIES and made[0].contiguous and integers[0].contiguous
    return Copies(made[0], tuple(integers), whole and made[0].shape == integers[0].shape)


def _sources(rule: Rule, copies: Mapping[str, Copies]) -> Iterator[Tensor]:
    """Yield the tensors whose values another has; all of one where it is not clear where."""
    waiting, seen = [rule.tensor], set[Tensor]()
    while waiting:
        tensor = waiting.pop()
        copied = copies.get(tensor.buffer)
        if tensor in seen:
            continue
        seen.add(tensor)
        if copied is None or (not isinstance(rule, Range) and len(copied.held) > 1):
            yield tensor
        else:
            waiting += [_within(source, tensor, copied) for source in copied.held]


def _within(source: Tensor, tensor: Tensor, copied: Copies) -> Tensor:
    """Return the elements of a source that a part of its copy holds."""
    if not copied.whole:
        return source
    elements = (tensor.offset - copied.made.offset) // copied.made.itemsize
    offset = source.offset + elements * source.itemsize
    moved = replace(tensor, buffer=source.buffer, offset=offset, dtype=source.dtype)
    return replace(moved, name=source.name)


def _rules(op: Op, graph: Graph) -> Iterator[Rule]:
    given = {} if op.is_scope else arguments_of(op, graph.schemas)
    if not given:
        return
    indices, below = given.get("indices"), _rows(given)
    if below is not None:
        yield from _bags(
            indices, given.get("offsets"), below, bool(given.get("include_last_offset"))
        )
    elif isinstance(indices, tuple) and isinstance(given.get("self"), Tensor):
        for index, size in zip(indices, given["self"].shape, strict=False):  # type: ignore[union-attr]
            if isinstance(index, Tensor):
                yield Range(index, size)
    mapping, weight = given.get("compressed_indices_mapping"), given.get("weight")
    if isinstance(mapping, Tensor) and isinstance(weight, Tensor):
        yield Range(mapping, weight.shape[0], besides=-1)
    if op.name == "irgraph.tier_pool":
        yield from _pooled(given)
    if op.name.startswith("irgraph.flex_attention"):
        yield from _spelled(given)
    yield from _along(given)
    yield from _classes(given)
    yield from _alignments(given)
    yield from _packed(op, given, graph)


def _rows(given: Mapping[str, Value]) -> Value:
    """Return the rows of the table, or of each table, that a lookup reads or updates."""
    if "num_weights" in given:
        return given["num_weights"]
    mapping = given.get("compressed_indices_mapping")
    if isinstance(mapping, Tensor) and given.get("pruned_weights"):
        return mapping.shape[0]
    tables = given.get("weight", given.get("weights"))
    if isinstance(tables, Tensor):
        return tables.shape[0] if tables.rank else None
    if isinstance(tables, tuple):
        return tuple(t.shape[0] for t in tables if isinstance(t, Tensor))
    return None


def _bags(indices: Value, offsets: Value, rows: Value, closed: bool) -> Iterator[Range | Starts]:
    if isinstance(indices, tuple) and isinstance(rows, tuple):
        lists = offsets if isinstance(offsets, tuple) else (None,) * len(indices)
        for index, start, below in zip(indices, lists, rows, strict=False):
            yield from _bags(index, start, below, closed)
    elif isinstance(indices, Tensor) and isinstance(rows, int):
        yield Range(indices, rows)
        if isinstance(offsets, Tensor):
            yield Starts(offsets, indices.numel, closed)


def _pooled(given: Mapping[str, Value]) -> Iterator[Starts]:
    """Starts of bags of rows that were read before."""
    staged, offsets = (given.get(name, ()) for name in ("staged", "offsets"))
    if isinstance(staged, tuple) and isinstance(offsets, tuple):
        for rows, starts in zip(staged, offsets, strict=False):
            if isinstance(rows, Tensor) and isinstance(starts, Tensor):
                yield Starts(starts, rows.shape[0], bool(given.get("include_last_offset")))


def _spelled(given: Mapping[str, Value]) -> Iterator[Range]:
    """Numbers by which what is done with each score looks into tensors."""
    held = given.get("buffers")
    named = {f"b{i}": t for i, t in enumerate(held)} if isinstance(held, tuple) else {}
    for text in (given.get("score"), given.get("mask")):
        for source, axis, index in lookups(text) if isinstance(text, str) else ():
            table, numbers = named.get(source), named.get(index)
            if isinstance(table, Tensor) and isinstance(numbers, Tensor) and axis < table.rank:
                yield Range(numbers, table.shape[axis])


def _along(given: Mapping[str, Value]) -> Iterator[Range]:
    """Indices along one axis, as ``gather`` and ``index_select`` take them."""
    source, dim, index = given.get("self"), given.get("dim"), given.get("index")
    if not isinstance(source, Tensor) or not source.rank:
        return
    if isinstance(dim, int) and isinstance(index, Tensor):
        yield Range(index, source.shape[dim])


def _classes(given: Mapping[str, Value]) -> Iterator[Range]:
    """Class numbers, as ``nll_loss`` and ``cross_entropy_loss`` take them."""
    scores, target = given.get("self"), given.get("target")
    if not isinstance(scores, Tensor) or not scores.rank:
        return
    if isinstance(target, Tensor) and target.dtype.startswith(("i", "u")):
        ignored = given.get("ignore_index")
        besides = ignored if isinstance(ignored, int) else None
        yield Range(target, scores.shape[min(1, scores.rank - 1)], besides)
    classes = given.get("num_classes")
    if isinstance(classes, int):
        yield Range(scores, classes)


def _alignments(given: Mapping[str, Value]) -> Iterator[Range]:
    """Labels and lengths, as ``ctc_loss`` takes them: torch reads what they say without a look."""
    scores, targets = given.get("log_probs"), given.get("targets")
    if not isinstance(scores, Tensor) or not isinstance(targets, Tensor) or scores.rank < 2:
        return
    yield Range(targets, scores.shape[-1])
    longest = targets.shape[-1] if targets.rank > 1 else 1  # those of one row, or of all together
    for name, most in (("input_lengths", scores.shape[0]), ("target_lengths", longest)):
        lengths = given.get(name)
        if isinstance(lengths, Tensor):
            yield Range(lengths, most + 1)


def _packed(op: Op, given: Mapping[str, Value], graph: Graph) -> Iterator[Exact]:
    """Yield the lengths of sequences that are packed: the model takes their steps one by one."""
    lengths = given.get("lengths")
    if op.name != "aten._pack_padded_sequence" or not isinstance(lengths, Tensor):
        return
    data = op.outputs[0]
    steps = _layers_steps(graph) or _sliced_steps(data, graph)
    if sum(steps) == data.shape[0]:
        values = (sum(n > i for n in steps) for i in range(lengths.numel))
        yield Exact(lengths, tuple(values))


def _layers_steps(graph: Graph) -> tuple[int, ...]:
    """Return how many sequences take part in each step of a recurrent layer of cuDNN."""
    layers = (o for o in graph.leaves() if o.name == "aten._cudnn_rnn")
    found = (o.attributes.get("batch_sizes") for o in layers)
    given = next((sizes for sizes in found if isinstance(sizes, tuple)), ())
    return tuple(size for size in given if isinstance(size, int))


def _sliced_steps(data: Tensor, graph: Graph) -> tuple[int, ...]:
    """Return the rows of each step, where steps are slices of the packed rows."""
    slices = (t for o in graph.leaves() if o.base == "slice" for t in o.outputs)
    return tuple({t.offset: t.shape[0] for t in slices if t.buffer == data.buffer}.values())


def table_rows(graph: Graph) -> set[int]:
    """Return the numbers of rows of the tables that lookups read, where they are constants."""
    found: set[int] = set()
    for op in graph.leaves():
        given = {} if op.is_scope else arguments_of(op, graph.schemas)
        rows = _rows(given) if "indices" in given else None
        listed = rows if isinstance(rows, tuple) else (rows,)
        if op.name == "irgraph.tier_pool":
            held = given.get("held", ())
            listed = tuple(t.shape[0] for t in held if isinstance(t, Tensor)) if held else ()  # type: ignore[union-attr]
        found.update(n for n in listed if isinstance(n, int) and not isinstance(n, Dim))
    return found
