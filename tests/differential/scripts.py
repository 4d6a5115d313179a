"""Random scripts that keep what a step computes, wherever their statements are legal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor
from tests.differential.orders import computes

SAME: Sequence[tuple[str, str]] = (
    ("%y = aten.relu(%x)", "{ %n = aten.neg(%x)  %m = aten.relu(%n)  %y = aten.add(%x, %m) }"),
    ("%y = aten.relu(%x)", "%y = aten.clamp(%x, min = 0.0)"),
    ("%y = aten.relu(%x)", "{ %y = aten.clone(%x)  aten.relu_(%y!) }"),
    ("%y = aten.relu(%x)", "{ aten.relu_(%x!)  %y = aten.clone(%x) }"),
    ("%y = aten.sigmoid(%x)", "{ aten.sigmoid_(%x!)  %y = aten.clone(%x) }"),
    ("%y = aten.sigmoid(%x)", "{ %c = aten.clone(%x)  aten.sigmoid_(%c!)  %y = aten.clone(%c) }"),
    ("%y = aten.neg(%x)", "%y = aten.mul(%x, other = -1)"),
    ("%y = aten.neg(%x)", "{ %y = aten.clone(%x)  aten.neg_(%y!) }"),
    ("%y = aten.neg(%x)", "{ aten.neg_(%x!)  %y = aten.clone(%x)  aten.neg_(%x!) }"),
    ("%y = aten.add(%a, %b)", "%y = aten.add(%b, %a)"),
    ("%y = aten.add(%a, %b)", "{ %y = aten.clone(%a)  aten.add_(%y!, %b) }"),
    ("%y = aten.add(%a, %b)", "{ aten.add_(%a!, %b)  %y = aten.clone(%a) }"),
    ("%y = aten.mul(%a, %b)", "{ aten.mul_(%b!, %a)  %y = aten.clone(%b) }"),
    ("%y = aten.mul(%a, %b)", "{ %y = aten.clone(%a)  aten.mul_(%y!, %b) }"),
    ("%y = aten.sub(%a, %b)", "{ %n = aten.neg(%b)  %y = aten.add(%a, %n) }"),
    ("%y = aten.clone(%x)", "%y = aten.mul(%x, other = 1.0)"),
    ("%y = aten.clone(%x)", "{ %z = aten.zeros_like(%x)  aten.copy_(%z!, %x)"
     "  %y = aten.clone(%z) }"),
    ("%y = aten.detach(%x)", "%y = aten.alias(%x)"),
    ("%y = aten.t(%x)", "%y = aten.transpose(%x, dim0 = 0, dim1 = 1)"),
    ("aten.relu_(%x!)", "{ %n = aten.relu(%x)  aten.copy_(%x!, %n) }"),
    ("aten.relu_(%x!)", "aten.clamp_(%x!, min = 0.0)"),
    ("aten.mul_(%x!, other = %c)", "{ %n = aten.mul(%x, other = %c)  aten.copy_(%x!, %n) }"),
    ("aten.add_(%x!, %z)", "{ %n = aten.add(%x, %z)  aten.copy_(%x!, %n) }"),
    ("aten.zero_(%x!)", "aten.fill_(%x!, value = 0.0)"),
    ("aten.copy_(%x!, %z)", "{ aten.zero_(%x!)  aten.add_(%x!, %z) }"),
    ("{ %y = aten.mul(%a, %b)  %z = aten.relu(%y) }",
     "{ %y = aten.mul(%b, %a)  %z = aten.clamp(%y, min = 0.0) }"),
    ("{ %p = aten.mul(%a, %b)  %q = aten.mul(%c, %d) }",
     "{ %p = aten.mul(%b, %a)  %q = aten.mul(%d, %c) }"),
    ("{ %t = aten.t(%x)  %y = aten.mm(%a, %t) }",
     "{ %t = aten.transpose(%x, dim0 = 0, dim1 = 1)  %y = aten.mm(%a, %t) }"),
    ("%y = aten.mean(%x)", "{ %s = aten.sum(%x)  %y = aten.div(%s, other = %x.numel) }"),
)  # fmt: skip
"""Patterns and templates that compute the same, if nothing else uses what they overwrite."""

BOTH: Sequence[tuple[str, str]] = (
    ("%y = aten.neg(%x)", "%y = aten.mul(%x, other = -1)"),
    ("%y = aten.add(%a, %b)", "%y = aten.add(%b, %a)"),
    ("%y = aten.add(%a, %b)", "{ %n = aten.neg(%b)  %y = aten.sub(%a, %n) }"),
    ("%y = aten.mul(%a, %b)", "%y = aten.mul(%b, %a)"),
    ("%y = aten.mul(%a, %b)", "{ %n = aten.neg(%b)  %m = aten.neg(%n)  %y = aten.mul(%a, %m) }"),
    ("%y = aten.sub(%a, %b)", "{ %n = aten.neg(%b)  %y = aten.add(%a, %n) }"),
    ("%y = aten.relu(%x)", "{ %n = aten.relu(%x)  %y = aten.relu(%n) }"),
    ("%y = aten.relu(%x)", "{ %c = aten.clone(%x)  %y = aten.relu(%c) }"),
    ("%y = aten.sigmoid(%x)", "{ %c = aten.clone(%x)  %y = aten.sigmoid(%c) }"),
    ("%y = aten.tanh(%x)", "{ %n = aten.neg(%x)  %m = aten.tanh(%n)  %y = aten.neg(%m) }"),
    ("%y = aten.linear(%x, %w, %b)", "{ %t = aten.t(%w)  %y = aten.addmm(%b, %x, %t) }"),
    ("{ %h = aten.linear(%x, %w, %b)  %y = aten.relu(%h) }",
     "{ %h = aten.linear(%x, %w, %b)  %n = aten.relu(%h)  %y = aten.relu(%n) }"),
)  # fmt: skip
"""Patterns and templates that compute the same, and whose gradients are the same."""

IDENTITIES = (
    "%y = aten.{clone,detach,alias,contiguous,to,_to_copy}(%x, ...)",
    "%y = aten.{view,reshape,expand,slice,_unsafe_view,unsqueeze}(%x, ...) "
    "where %y.type == %x.type",
    "{ %u = aten.t(%x)  %y = aten.t(%u) }",
    "{ %u = aten.transpose(%x, %d, %e)  %y = aten.transpose(%u, %d, %e) }",
    "{ %u = aten.neg(%x)  %y = aten.neg(%u) }",
    "%y = aten.mul(%x, other = 1.0)",
    "%y = aten.add(%x, other = 0.0)",
)

PASSES = (
    "clean-copies", "remove-dead", 'remove-dead(keep = "%*")', 'remove-dead(keep = "")',
    "fuse-epilogue", "fuse-optimizer", "fuse-embedding", "fuse-embedding(least = 1)", "batch-gemm",
    "batch-gemm(least = 1)", "fuse-add-norm", "cast-gemms", "cast-gemms(narrow = tf32)",
    "hoist-h2d", 'parallel-branches(bottom = "layer3")', 'early-bottom(bottom = "layer3")',
)  # fmt: skip

FOREACH = ("neg", "abs", "sigmoid", "tanh", "sin")


@dataclass
class Writer:
    """Writes statements about one graph."""

    rng: Random
    graph: Graph
    leaves: Sequence[Op] = field(init=False)

    def __post_init__(self) -> None:
        found = [leaf for leaf in self.graph.leaves() if computes(leaf)]
        self.leaves = [leaf for leaf in found if leaf.name.startswith("aten.")] or found

    def name(self) -> str:
        """Return an op's name, or a glob that fits it."""
        leaf = self.rng.choice(self.leaves)
        base = leaf.name.removeprefix("aten.")
        other = self.rng.choice(self.leaves).name.removeprefix("aten.")
        glob = f"aten.{{{base},{other}}}" if base != other else leaf.name
        return self.rng.choice([leaf.name, leaf.name, f"{leaf.name}*", glob])

    def many(self) -> str:
        """Return ``many``, or nothing."""
        return self.rng.choice(["", "many "])

    def where(self) -> str:
        """Return a condition, now and then."""
        choices = ["", "", "", " within forward", " within backward", " where op.bytes > 30B"]
        return self.rng.choice(choices)

    def stream(self) -> str:
        """Return a stream to run on, now and then."""
        return self.rng.choice(["", "", " on stream side", " on stream other"])


def reorder(w: Writer) -> str:
    start = f"reorder {w.many()}{w.name()}{w.where()}"
    if w.rng.random() < 0.5:
        return f"{start} {w.rng.choice(['earliest', 'latest'])}{w.stream()}"
    side, nth = w.rng.choice(["before", "after"]), w.rng.choice(["first ", "last ", ""])
    return f"{start} {side} {nth}{w.name()}{w.stream()}"


def parallelize(w: Writer) -> str:
    groups = ", ".join(f"many {w.name()}{w.where()}" for _ in range(w.rng.randrange(1, 4)))
    return f"parallelize {groups} over {w.rng.choice([2, 3])} streams"


def remove(w: Writer) -> str:
    kind = w.rng.random()
    if kind < 0.5:
        pattern = w.rng.choice(IDENTITIES)
        return f"remove {w.many()}{pattern} using %x for %y"
    if kind < 0.7:
        return f"remove many {w.name()} where op.{w.rng.choice(['unread', 'idle'])}"
    return f"remove {w.many()}{w.name()}{w.where()}"


def replace(w: Writer) -> str:
    names = {leaf.name for leaf in w.leaves}
    fitting = [pair for pair in SAME if any(f"{name}(" in pair[0] for name in names)]
    pattern, template = w.rng.choice(fitting or SAME)
    return f"replace {w.many()}{pattern}{w.where()} with {template}"


def both(w: Writer) -> str:
    """Replace or remove ops with their backward."""
    if w.rng.random() < 0.2:
        return f"remove {w.many()}{w.rng.choice(IDENTITIES)} using %x for %y and backward"
    names = {leaf.name for leaf in w.graph.walk()}
    fitting = [pair for pair in BOTH if any(f"{name}(" in pair[0] for name in names)]
    pattern, template = w.rng.choice(fitting or BOTH)
    return f"replace {w.many()}{pattern} with {template} and backward"


def again(w: Writer) -> str:
    """Replace some ops that stand near each other by themselves."""
    at, count = w.rng.randrange(len(w.leaves)), w.rng.randrange(1, 4)
    near = [leaf for leaf in w.leaves[at : at + 8] if None not in leaf.results and leaf.inputs]
    ops = sorted(w.rng.sample(near, min(count, len(near))), key=near.index)
    if not ops:
        return reorder(w)
    names: dict[str, str] = {}
    written, made = [], []
    for k, op in enumerate(ops):
        given = [f"{name} = %{name}{k}" for name in op.attributes]
        inside = ", ".join([*(_spelled(v, op, names) for v in op.operands), *given])
        results = ", ".join(_spelled(r, op, names) for r in op.results)
        call = f"{results + ' = ' if results else ''}{op.name}({inside})"
        written.append(call)
        made.append(call)
    if w.rng.random() < 0.3:
        w.rng.shuffle(made)
    return f"replace {w.many()}{{ {'  '.join(written)} }} with {{ {'  '.join(made)} }}"


def _spelled(value: Value, op: Op, names: dict[str, str]) -> str:
    if isinstance(value, Tensor):
        name = names.setdefault(value.name, f"%t{len(names)}")
        return name + "!" * (value.name in op.written)
    if isinstance(value, tuple):
        return f"[{', '.join(_spelled(item, op, names) for item in value)}]"
    return "none"


def insert(w: Writer) -> str:
    name = w.name()
    template, swap = w.rng.choice(
        [
            ("%z = aten.clone(%y)", "%z"),
            ("%z = aten.alias(%y)", "%z"),
            ("%z = aten.mul(%y, other = 1.0)", "%z"),
            ("aten.mul_(%y!, other = 1.0)", ""),
            ("{ aten.neg_(%y!)  aten.neg_(%y!) }", ""),
            ("%z = aten.neg(%y)", ""),
            ("{ %n = aten.neg(%y)  %z = aten.neg(%n) }", "%z"),
            ("{ %n = aten.clone(%y)  aten.neg_(%n!)  %z = aten.neg(%n) }", "%z"),
            ("{ %e = sync.record()  sync.wait(%e) }", ""),
            ("%e = sync.record()", ""),
        ]
    )
    pattern = w.rng.choice([f"%y = {name}(...)", f"%y, ... = {name}(...)", f"{name}(%y!, ...)"])
    side = "after" if swap else w.rng.choice(["before", "after"])
    using = f" using {swap} for %y" if swap and w.rng.random() < 0.8 else ""
    return f"insert {template} {side} {w.many()}{pattern}{w.where()}{using}"


def cast(w: Writer) -> str:
    kind = w.rng.choice(["bf16", "f16", "f64", "f32", "tf32"])
    return f"cast {w.many()}{w.name()}{w.where()} to {kind}"


def fuse(w: Writer) -> str:
    op = w.rng.choice(FOREACH)
    return w.rng.choice(
        [
            f"fuse many %y = aten.{op}(%x){w.where()} into [*%y] = aten._foreach_{op}([*%x])",
            f"fuse many aten.{op}_(%x!) into aten._foreach_{op}_([*%x!])",
            "fuse many aten.mul_(%x!, other = %c) group by %c into aten._foreach_mul_([*%x!], %c)",
            "fuse many aten.add_(%x!, %z, alpha = %c) group by %c "
            "into aten._foreach_add_([*%x!], [*%z], alpha = %c)",
            "fuse many %y = aten.mul(%a, %b) into [*%y] = aten._foreach_mul([*%a], [*%b])",
            "fuse many %y = aten.mm(%a, %b) group by %a.type, %b.type "
            "into [*%y] = irgraph.batched_gemm([*%a], [*%b])",
            "fuse { %h = aten.addmm(%c, %x, %w)  aten.relu_(%h!) } "
            "into %h = irgraph.addmm_relu(%c, %x, %w)",
            "fuse many %y = aten.relu(aten.addmm(%c, %x, %w)) "
            "into %y = irgraph.addmm_relu(%c, %x, %w)",
            "fuse many %y = aten.abs(aten.neg(%x)) into %y = aten.abs(%x)",
        ]
    )


def apply(w: Writer) -> str:
    return f"apply {w.rng.choice(PASSES)}"


def again_and_again(w: Writer) -> str:
    return f"repeat at most 3 {{ {statement(w, nested=True)} {statement(w, nested=True)} }}"


def found(w: Writer) -> str:
    first = f"find found = {w.many()}{w.name()}{w.where()}"
    return f"{first} reorder found {w.rng.choice(['earliest', 'latest'])}{w.stream()}"


KINDS: Sequence[tuple[Callable[[Writer], str], int]] = (
    (reorder, 4), (parallelize, 2), (remove, 5), (replace, 6), (again, 5), (insert, 4), (cast, 3),
    (fuse, 4), (apply, 4), (both, 4), (again_and_again, 1), (found, 1),
)  # fmt: skip


def statement(w: Writer, nested: bool = False) -> str:
    """Return one statement."""
    kinds = KINDS[:-2] if nested else KINDS
    chosen = w.rng.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])
    return chosen[0](w)


def script(seed: int, graph: Graph) -> list[str]:
    """Return the statements of a random script about a graph."""
    rng = Random(seed)
    writer = Writer(rng, graph)
    return [statement(writer) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
