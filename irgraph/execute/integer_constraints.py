"""Constraints on integers: row numbers within tables, increasing offsets, fitting lengths.

The rules depend on the names of a schema's arguments, which are the same for all lookups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.dim import Dim
from irgraph.ir.graph import Graph, cached_per_graph
from irgraph.ir.op import Op, Value, tensors_in
from irgraph.ir.schema import arguments_of, bind, resolve
from irgraph.ir.tensor import Tensor
from irgraph.ir.torch_schemas.score_functions import lookups
from irgraph.ops.book import names_with
from irgraph.ops.operator import Trait

SELECTIONS = (
    "cat", "constant_pad_nd", "flip", "gather", "index", "index_select", "masked_fill",
    "masked_select", "repeat", "repeat_interleave", "roll", "stack", "take", "where",
)  # fmt: skip
"""Ops whose results consist of elements of their operands, except for ``INDEX_ARGUMENTS``."""

INDEX_ARGUMENTS = ("index", "indices", "mask", "condition", "repeats", "value")
"""Arguments of those ops whose elements are not in the results."""


MAX_PERMUTED_ROWS = 1 << 24
"""Maximum number of rows of a table of which distinct rows are drawn."""


class IndexRange(Struct, frozen=True):
    """Elements of ``tensor`` are at least 0 and below ``below``, or ``extra``, if that is any.

    ``distinct`` if as many elements as possible differ: the step coalesces a sparse gradient, and
    its model has the number of distinct rows.
    """

    tensor: Tensor
    below: int
    extra: int | None = None
    distinct: bool = False


class BagStarts(Struct, frozen=True):
    """Elements of ``tensor`` are the starts of bags of ``total`` indices, the first one 0.

    ``closed`` if the last element is the end.
    """

    tensor: Tensor
    total: int
    closed: bool = False


class BagLengths(Struct, frozen=True):
    """Elements of ``tensor`` are the lengths of bags, ``total`` indices together."""

    tensor: Tensor
    total: int


class ExactValues(Struct, frozen=True):
    """Elements of ``tensor`` are ``values``, since sizes of the model depend on them."""

    tensor: Tensor
    values: tuple[int, ...]


Rule: TypeAlias = IndexRange | BagStarts | BagLengths | ExactValues


@cached_per_graph
def integer_rules(graph: Graph) -> dict[str, list[Rule]]:
    """Return the constraints on integers by buffer, traced back through copies and sums."""
    copies: dict[str, ElementCopy] = {}
    sums: dict[str, tuple[Tensor, Tensor]] = {}
    rules_by_buffer: dict[str, list[Rule]] = {}
    distinct = any(op.name == "aten._coalesce" for op in graph.leaves())
    for op in graph.leaves():
        copy = _element_copy(op, graph)
        if copy is not None:
            copies[copy.result.buffer] = copy
        if op.name == "aten.cumsum":
            sums[op.outputs[0].buffer] = (op.outputs[0], op.inputs[0])
        for rule in _rules(op, graph):
            if isinstance(rule, IndexRange) and distinct:
                rule = replace(rule, distinct=rule.below <= MAX_PERMUTED_ROWS)
            lengths_rule = (
                _lengths_rule(rule, copies, sums) if isinstance(rule, BagStarts) else None
            )
            for source in _sources(lengths_rule or rule, copies):
                rules_by_buffer.setdefault(source.buffer, []).append(
                    replace(lengths_rule or rule, tensor=source)
                )
    return rules_by_buffer


def _lengths_rule(
    rule: BagStarts, copies: Mapping[str, ElementCopy], sums: Mapping[str, tuple[Tensor, Tensor]]
) -> BagLengths | None:
    """Return the rule on lengths if starts are their cumulative sums after a zero, else ``None``.

    ``KeyedJaggedTensor`` computes starts in this way, with a row of lengths for each key.
    """
    copy = copies.get(rule.tensor.buffer)
    while copy is not None and copy.is_full:
        copy = copies.get(copy.sources[0].buffer)
    last = copy.sources[-1] if copy is not None and len(copy.sources) > 1 else None
    while last is not None and last.buffer in copies and copies[last.buffer].is_full:
        last = copies[last.buffer].sources[0]
    if copy is None or last is None or last.buffer not in sums:
        return None
    _, lengths = sums[last.buffer]
    row, rest = divmod(
        (rule.tensor.offset - copy.result.offset) // rule.tensor.itemsize, copy.result.shape[-1]
    )
    count = lengths.shape[-1]
    if rest or not lengths.contiguous or rule.tensor.numel != count + 1:
        return None
    offset = lengths.offset + row * count * lengths.itemsize
    return BagLengths(replace(lengths, shape=(count,), strides=None, offset=offset), rule.total)


class ElementCopy(Struct, frozen=True):
    """A tensor that consists of elements of others, in order if it is a full copy of one."""

    result: Tensor
    sources: tuple[Tensor, ...]
    is_full: bool


def is_copy(op: Op) -> bool:
    """Return whether an op copies all elements of one tensor, to a new or to an existing one."""
    return op.name == "aten.copy_" or op.name in names_with(Trait.DUPLICATE)


def _element_copy(op: Op, graph: Graph) -> ElementCopy | None:
    """Return the copy of an op that only copies or selects elements, else ``None``."""
    if not op.name.startswith("aten.") or not (is_copy(op) or op.base in SELECTIONS):
        return None
    results = [*op.outputs, *(t for t in op.inputs if t.name in op.written)]
    sources = [t for t in op.inputs if t.name not in op.written]
    if op.base in SELECTIONS:
        schema = resolve(op, graph.schemas)
        pairs = bind(schema, op) if schema else ()
        sources = list(
            tensors_in(value for argument, value in pairs if argument.name not in INDEX_ARGUMENTS)
        )
    integers = [t for t in sources if t.dtype.startswith(("i", "u"))]
    if len(results) != 1 or not integers or any(results[0].buffer == t.buffer for t in sources):
        return None
    is_full = is_copy(op) and results[0].contiguous and integers[0].contiguous
    return ElementCopy(
        results[0], tuple(integers), is_full and results[0].shape == integers[0].shape
    )


def _sources(rule: Rule, copies: Mapping[str, ElementCopy]) -> Iterator[Tensor]:
    """Yield the tensors from which a rule's tensor was copied, in full if the part is unknown."""
    waiting, seen = [rule.tensor], set[Tensor]()
    while waiting:
        tensor = waiting.pop()
        copy = copies.get(tensor.buffer)
        if tensor in seen:
            continue
        seen.add(tensor)
        if copy is None or (not isinstance(rule, IndexRange) and len(copy.sources) > 1):
            yield tensor
        else:
            waiting += [_source_elements(source, tensor, copy) for source in copy.sources]


def _source_elements(source: Tensor, tensor: Tensor, copy: ElementCopy) -> Tensor:
    """Return the elements of a source that are in a part of its copy."""
    if not copy.is_full:
        return source
    elements = (tensor.offset - copy.result.offset) // copy.result.itemsize
    offset = source.offset + elements * source.itemsize
    view = replace(tensor, buffer=source.buffer, offset=offset, dtype=source.dtype)
    return replace(view, name=source.name)


def _rules(op: Op, graph: Graph) -> Iterator[Rule]:
    arguments = {} if op.is_scope else arguments_of(op, graph.schemas)
    if not arguments:
        return
    indices, below = arguments.get("indices"), _rows(arguments)
    if below is not None:
        yield from _bags(
            indices, arguments.get("offsets"), below, bool(arguments.get("include_last_offset"))
        )
    elif isinstance(indices, tuple) and isinstance(arguments.get("self"), Tensor):
        for index, size in zip(indices, arguments["self"].shape, strict=False):  # type: ignore[union-attr]
            if isinstance(index, Tensor):
                yield IndexRange(index, size)
    mapping, weight = arguments.get("compressed_indices_mapping"), arguments.get("weight")
    if isinstance(mapping, Tensor) and isinstance(weight, Tensor):
        yield IndexRange(mapping, weight.shape[0], extra=-1)
    if op.name == "irgraph.tier_pool":
        yield from _staged_starts(arguments)
    if op.name.startswith("irgraph.flex_attention"):
        yield from _score_lookups(arguments)
    yield from _axis_indices(arguments)
    yield from _class_numbers(arguments)
    yield from _alignments(arguments)
    yield from _packed_lengths(op, arguments, graph)


def _rows(arguments: Mapping[str, Value]) -> Value:
    """Return the number of rows of the table, or of each table, that a lookup reads or updates."""
    if "num_weights" in arguments:
        return arguments["num_weights"]
    mapping = arguments.get("compressed_indices_mapping")
    if isinstance(mapping, Tensor) and arguments.get("pruned_weights"):
        return mapping.shape[0]
    tables = arguments.get("weight", arguments.get("weights"))
    if isinstance(tables, Tensor):
        return tables.shape[0] if tables.rank else None
    if isinstance(tables, tuple):
        return tuple(t.shape[0] for t in tables if isinstance(t, Tensor))
    return None


def _bags(
    indices: Value, offsets: Value, rows: Value, closed: bool
) -> Iterator[IndexRange | BagStarts]:
    if isinstance(indices, tuple) and isinstance(rows, tuple):
        lists = offsets if isinstance(offsets, tuple) else (None,) * len(indices)
        for index, start, below in zip(indices, lists, rows, strict=False):
            yield from _bags(index, start, below, closed)
    elif isinstance(indices, Tensor) and isinstance(rows, int):
        yield IndexRange(indices, rows)
        if isinstance(offsets, Tensor):
            yield BagStarts(offsets, indices.numel, closed)


def _staged_starts(arguments: Mapping[str, Value]) -> Iterator[BagStarts]:
    """Yield the starts of bags of previously read rows."""
    staged, offsets = (arguments.get(name, ()) for name in ("staged", "offsets"))
    if isinstance(staged, tuple) and isinstance(offsets, tuple):
        for rows, starts in zip(staged, offsets, strict=False):
            if isinstance(rows, Tensor) and isinstance(starts, Tensor):
                yield BagStarts(starts, rows.shape[0], bool(arguments.get("include_last_offset")))


def _score_lookups(arguments: Mapping[str, Value]) -> Iterator[IndexRange]:
    """Yield the indices with which a score function or a mask reads tensors."""
    buffers = arguments.get("buffers")
    by_name = {f"b{i}": t for i, t in enumerate(buffers)} if isinstance(buffers, tuple) else {}
    for text in (arguments.get("score"), arguments.get("mask")):
        for source, axis, index in lookups(text) if isinstance(text, str) else ():
            table, numbers = by_name.get(source), by_name.get(index)
            if isinstance(table, Tensor) and isinstance(numbers, Tensor) and axis < table.rank:
                yield IndexRange(numbers, table.shape[axis])


def _axis_indices(arguments: Mapping[str, Value]) -> Iterator[IndexRange]:
    """Yield the indices along one axis, of ops such as ``gather`` and ``index_select``."""
    source, dim, index = arguments.get("self"), arguments.get("dim"), arguments.get("index")
    if not isinstance(source, Tensor) or not source.rank:
        return
    if isinstance(dim, int) and isinstance(index, Tensor):
        yield IndexRange(index, source.shape[dim])


def _class_numbers(arguments: Mapping[str, Value]) -> Iterator[IndexRange]:
    """Yield the class numbers of ops such as ``nll_loss`` and ``cross_entropy_loss``."""
    scores, target = arguments.get("self"), arguments.get("target")
    if not isinstance(scores, Tensor) or not scores.rank:
        return
    if isinstance(target, Tensor) and target.dtype.startswith(("i", "u")):
        ignored = arguments.get("ignore_index")
        extra = ignored if isinstance(ignored, int) else None
        yield IndexRange(target, scores.shape[min(1, scores.rank - 1)], extra)
    classes = arguments.get("num_classes")
    if isinstance(classes, int):
        yield IndexRange(scores, classes)


def _alignments(arguments: Mapping[str, Value]) -> Iterator[IndexRange]:
    """Yield the labels and lengths of ops such as ``ctc_loss``, which torch does not check."""
    scores, targets = arguments.get("log_probs"), arguments.get("targets")
    if not isinstance(scores, Tensor) or not isinstance(targets, Tensor) or scores.rank < 2:
        return
    yield IndexRange(targets, scores.shape[-1])
    longest = targets.shape[-1] if targets.rank > 1 else 1  # of one row, or of all rows together
    for name, max_length in (("input_lengths", scores.shape[0]), ("target_lengths", longest)):
        lengths = arguments.get(name)
        if isinstance(lengths, Tensor):
            yield IndexRange(lengths, max_length + 1)


def _packed_lengths(op: Op, arguments: Mapping[str, Value], graph: Graph) -> Iterator[ExactValues]:
    """Yield the lengths of packed sequences, on which sizes of the model depend."""
    lengths = arguments.get("lengths")
    if op.name != "aten._pack_padded_sequence" or not isinstance(lengths, Tensor):
        return
    data = op.outputs[0]
    steps = _recurrent_batch_sizes(graph) or _sliced_batch_sizes(data, graph)
    if sum(steps) == data.shape[0]:
        values = (sum(n > i for n in steps) for i in range(lengths.numel))
        yield ExactValues(lengths, tuple(values))


def _recurrent_batch_sizes(graph: Graph) -> tuple[int, ...]:
    """Return the number of sequences in each step of a recurrent layer of cuDNN."""
    layers = (o for o in graph.leaves() if o.name == "aten._cudnn_rnn")
    candidates = (o.attributes.get("batch_sizes") for o in layers)
    batch_sizes = next((sizes for sizes in candidates if isinstance(sizes, tuple)), ())
    return tuple(size for size in batch_sizes if isinstance(size, int))


def _sliced_batch_sizes(data: Tensor, graph: Graph) -> tuple[int, ...]:
    """Return the number of rows of each step, if steps are slices of the packed rows."""
    slices = (t for o in graph.leaves() if o.base == "slice" for t in o.outputs)
    return tuple({t.offset: t.shape[0] for t in slices if t.buffer == data.buffer}.values())


def table_rows(graph: Graph) -> set[int]:
    """Return the numbers of rows of the tables that lookups read, if they are constants."""
    row_counts: set[int] = set()
    for op in graph.leaves():
        arguments = {} if op.is_scope else arguments_of(op, graph.schemas)
        rows = _rows(arguments) if "indices" in arguments else None
        counts = rows if isinstance(rows, tuple) else (rows,)
        if op.name == "irgraph.tier_pool":
            caches = arguments.get("held", ())
            counts = tuple(t.shape[0] for t in caches if isinstance(t, Tensor)) if caches else ()  # type: ignore[union-attr]
        row_counts.update(n for n in counts if isinstance(n, int) and not isinstance(n, Dim))
    return row_counts
