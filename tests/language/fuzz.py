"""Random scripts on random graphs, and random damage to scripts and models.

What is legal keeps every number; what is damaged runs or says why not, never with a traceback.
``python -m tests.language.fuzz COUNT`` tries that many of each; ``make fuzz`` tries 10,000.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

import passes
from irgraph.ir.graph import Declared, Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.language import load_script, run
from irgraph.ops.verify import verify
from irgraph.text import IrgraphError, parse, print_graph
from tests.language.models import mlp, training
from tests.language.numeric import LENGTH, Machine

Rng = random.Random
ONE = ("neg", "abs", "relu", "clone")


def graph(seed: int) -> Graph:
    """Return ops on numbers: views, writes in place, scopes, operands far and near."""
    rng = Rng(seed)
    inputs = [Tensor(f"i{k}", "f32", (LENGTH,), f"i{k}") for k in range(4)]
    known = list(inputs)

    def fresh(name: str, *operands: Tensor) -> Op:
        made = Tensor(f"t{len(known)}", "f32", operands[0].shape, f"b{len(known)}")
        known.append(made)
        return Op(f"aten.{name}", operands, (made,))

    def op(depth: int) -> Op:
        taken, kind = rng.choice(known if rng.random() < 0.6 else inputs), rng.random()
        if depth and kind < 0.2:
            return Op("autograd.X", body=tuple(op(depth - 1) for _ in range(rng.randrange(1, 4))))
        if kind < 0.35:
            return Op(f"aten.{rng.choice(ONE[:3])}_", (taken,), written=frozenset([taken.name]))
        if kind < 0.45 and taken.shape == (LENGTH,):
            place = rng.choice([0, 8])
            view = replace(taken, name=f"t{len(known)}", shape=(2,), offset=place)
            known.append(view)
            return Op("aten.view", (taken,), (view,), {"size": (2,)})
        if kind < 0.6:
            return fresh("add", taken, rng.choice([t for t in known if t.shape == taken.shape]))
        return fresh(rng.choice(ONE), taken)

    ops = tuple(op(2) for _ in range(rng.randrange(4, 14)))
    return Graph("numbers", tensors=tuple(Declared("input", t) for t in inputs), ops=ops)


def statement(rng: Rng) -> str:
    """Return a statement that keeps every number, of any verb."""
    one, two = (rng.choice(ONE[:3]) for _ in range(2))
    name = rng.choice([one, f"{one}_", "add", "{neg,abs}", "{relu_,neg_,abs_}", "view"])
    many = rng.choice(["", "many "])
    stream = rng.choice(["", " on stream side", " on stream other"])
    side, nth = rng.choice(["before", "after"]), rng.choice(["first", "last"])
    where = rng.choice(["", "", " where op.bytes > 3B", " within forward"])
    forms = [
        f"reorder {many}aten.{name}{where} {rng.choice(['earliest', 'latest'])}{stream}",
        f"reorder {many}aten.{name}{where} {side} {nth} aten.{two}{stream}",
        f"parallelize {many}aten.{one}, {many}aten.{two} over {rng.choice([2, 3])} streams",
        f"parallelize many aten.{name} over 3 streams",
        f"fuse many %y = aten.{one}(%x){where} into [*%y] = aten._foreach_{one}([*%x])"
        if one != "relu"
        else "let n = 4",
        f"fuse many %y = aten.neg(%x) group by %x.shape having count >= {rng.choice([1, 2])}"
        " into [*%y] = aten._foreach_neg([*%x])",
        "find found = many aten.neg reorder found latest",
        "fuse many %y = aten.abs(aten.neg(%x)) into %y = aten.abs(%x)",
        "replace many %y = aten.abs(%x) with { %m = aten.neg(%x)  %y = aten.abs(%m) }",
        "replace many { %y = aten.clone(%x) } with %y = aten.clone(%x)",
        f"remove many %y = aten.clone(%x){where} using %x for %y",
        f"insert %z = aten.clone(%y) after many %y = aten.{one}(_) using %z for %y",
        f"insert %z = aten.clone(%y) {side} first %y = aten.{one}(%y)",
        f"insert aten.clone(%x) {side} {many}aten.{one}(%x)",
        f"cast {many}aten.{one} to f64",
        f"repeat at most 2 {{ reorder aten.{name} latest }}",
        "expect no aten.mm",
        "remove many %y = aten.clone(%x)",
    ]
    return rng.choice(forms)


def legal(seed: int) -> str:
    """Run a script of a few such statements, and hold all numbers against those before it.

    Raises:
        AssertionError: the graph is unsound, or computes something else.
    """
    rng = Rng(seed)
    before = graph(seed)
    text = "\n".join(statement(rng) for _ in range(rng.randrange(1, 4)))
    try:
        after = run(load_script(text), before).graph
    except IrgraphError as error:
        assert str(error)
        return "refused"
    assert verify(after) == [], text
    wanted = Machine(before).run()
    for chance in (None, Rng(seed), Rng(seed + 1)):
        found = Machine(after).run(chance)
        assert found.lasting() == wanted.lasting(), text
        for name in found.defined.keys() & wanted.defined.keys():
            assert found.defined[name] == wanted.defined[name], (text, name)
    return "changed" if after is not before else "same"


GRAPHS = (mlp(), training(2))
SCRIPTS = [
    path.read_text(encoding="utf-8") for path in sorted(Path(passes.__file__).parent.glob("*.irg"))
]
ODD = (
    "%", "{", "}", "(", ")", "[", "]", '"', "*", "...", "!", "_", "=", ",", "@", "$", "\\", "1e999",
    "\0", "é", "9" * 30, "'", "~", "none", ".5", "%x", "#",
)  # fmt: skip
"""What takes the place of a piece."""


def cut(words: list[str], rng: Rng) -> None:
    """Take a piece away."""
    at = rng.randrange(len(words))
    del words[at : at + rng.choice((1, 1, 2, 9))]


def double(words: list[str], rng: Rng) -> None:
    """Say a piece twice."""
    at = rng.randrange(len(words))
    words[at:at] = words[at : at + rng.choice((1, 2, 5))]


def put(words: list[str], rng: Rng) -> None:
    """Put something odd in the place of a piece, or beside it."""
    at = rng.randrange(len(words))
    words[at : at + rng.randrange(2)] = [rng.choice((*ODD, rng.choice(words)))]


def swap(words: list[str], rng: Rng) -> None:
    """Exchange two pieces."""
    a, b = rng.randrange(len(words)), rng.randrange(len(words))
    words[a], words[b] = words[b], words[a]


DAMAGES: tuple[Callable[[list[str], Rng], None], ...] = (cut, double, put, put, swap)


def damaged(text: str, rng: Rng) -> str:
    """Return a text with one damage or a few: to its words, or to its characters."""
    joint = rng.choice((" ", ""))
    pieces = text.split(joint) if joint else list(text)
    for _ in range(rng.choice((1, 1, 2, 4))):
        if pieces:
            rng.choice(DAMAGES)(pieces, rng)
    return joint.join(pieces)


def script(seed: int) -> str:
    """Run a damaged script: it runs to a sound graph, or says why not."""
    rng = Rng(seed)
    source = (
        rng.choice(SCRIPTS) if rng.random() < 0.5 else "\n".join(statement(rng) for _ in range(3))
    )
    text = damaged(source, rng)
    try:
        after = run(load_script(text), rng.choice(GRAPHS)).graph
    except IrgraphError as error:
        assert error.exit_code in (1, 4)
        assert "error: " in str(error)
        return "refused"
    assert verify(after) == [], text
    return "ran"


def model(seed: int) -> str:
    """Read a damaged model, and transform it where it is still sound."""
    rng = Rng(seed)
    text = damaged(print_graph(rng.choice((*GRAPHS, graph(seed)))), rng)
    try:
        read = parse(text, "m.ir")
        if verify(read):
            return "unsound"
        assert parse(print_graph(read)) == read
        after = run(load_script(statement(rng)), read).graph
    except IrgraphError as error:
        assert str(error)
        return "refused"
    assert verify(after) == []
    return "read"


KINDS: dict[str, Callable[[int], str]] = {"legal": legal, "script": script, "model": model}


def fuzz(count: int, first: int = 0) -> tuple[Counter[str], dict[str, str]]:
    """Try seeds of every kind; return how often each outcome came, and what failed."""
    counts: Counter[str] = Counter()
    failed: dict[str, str] = {}
    for seed in range(first, first + count):
        for name, kind in KINDS.items():
            try:
                counts[f"{name} {kind(seed)}"] += 1
            except Exception as error:
                failed[f"{name}({seed})"] = repr(error)[:300]
    return counts, failed


def main(count: int) -> str:
    """Try that many and return what went wrong, nothing if all is well."""
    counts, failed = fuzz(count)
    sys.stdout.write(f"{dict(sorted(counts.items()))}\n")
    return f"failed: {failed}" if failed else ""


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000) or 0)
