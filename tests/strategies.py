"""Random but sound graphs, for property tests and benchmarks."""

from __future__ import annotations

import random

from irgraph.ir.dim import make
from irgraph.ir.graph import Declared, Device, Graph, Stream
from irgraph.ir.op import Op, Value
from irgraph.ir.quantity import Quantity
from irgraph.ir.tensor import DeviceRef, DType, Tensor

WORDS = ["learned", "gemm", 'a "quoted" word', "ends) : here", "umlaut ä", "back\\slash"]


class GraphMaker:
    """Makes a graph from a seed: views, in-place writes, lists, scopes, threads, streams, notes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.dims = {"B": self.random.choice([1, 7, 64]), "L": 10}
        self.count = 0
        self.known: list[Tensor] = []

    def graph(self, ops: int) -> Graph:
        """Return a graph of about so many ops."""
        declared = tuple(
            Declared(self.random.choice(["input", "param", "state"]), self.fresh(), label)
            for label in ["", "bot.0.weight", WORDS[2]]
        )
        self.known = [d.tensor for d in declared]
        made: list[Op] = []
        while self.count < ops:
            made.append(self.op(3))
        outputs = [t for op in made for inner in op.walk() for t in inner.outputs]
        returned = tuple(self.random.choices([*self.known, *outputs], k=self.random.randrange(4)))
        return Graph(
            self.random.choice(["m", WORDS[2]]),
            self.dims,
            {"source": self.random.choice(WORDS), "n": 3, "rate": 0.5, "operands": "at random"},
            ("my::op(Tensor(a!) x, int n=1) -> Tensor",) if self.random.random() < 0.3 else (),
            (Device("gpu0", "v100"), Device("gpu1", "a100")),
            (Stream("s7", "gpu0"), Stream("copy", "gpu0")),
            declared,
            tuple(made),
            returned=self.random.choice([None, returned]),
        )

    def size(self) -> int:
        """Return a plain or symbolic size."""
        terms = [
            [((), self.random.randrange(0, 70))],
            [(("B",), 1)],
            [(("B", "L"), 26), ((), -1)],
            [(("B",), 2), (("L",), 3)],
        ]
        return make(self.random.choice(terms), self.dims)

    def fresh(self, buffer: str = "", offset: int = 0, device: str = "") -> Tensor:
        """Return a new tensor, in a buffer of its own unless one is given."""
        self.count += 1
        shape = tuple(self.size() for _ in range(self.random.randrange(4)))
        strides = None
        if shape and self.random.random() < 0.2:
            strides = tuple(self.size() + 71 for _ in shape)
        dtype = self.random.choice(["f32", "i64", "bf16", "bool", "c64"])
        place = device or self.random.choice(["gpu0", "gpu0", "gpu1", "cpu"])
        name = f"t{self.count}"
        return Tensor(name, dtype, shape, buffer or f"b{self.count}", strides, offset, place)

    def value(self, depth: int = 2) -> Value:
        """Return a literal, or a list of literals."""
        options: list[Value] = [
            None,
            True,
            False,
            3,
            -1,
            self.size(),
            0.1,
            -2.5e-7,
            1e300,
            float("inf"),
            self.random.choice(WORDS),
            DType("f16"),
            DeviceRef("gpu0"),
            (),
            1.0,
            "",
        ]
        if depth and self.random.random() < 0.3:
            return tuple(self.value(0) for _ in range(3))
        return self.random.choice(options)

    def op(self, depth: int) -> Op:
        """Return an op on what is defined so far, with a body now and then."""
        self.count += 1
        rand = self.random
        used = [rand.choice(self.known) for _ in range(rand.randrange(4))]
        operands: list[Value] = list(used)
        if len(used) > 2:
            operands = [used[0], tuple(used[1:])]
        written = frozenset({used[0].name} if used and rand.random() < 0.2 else ())
        attributes = {f"k{i}": self.value() for i in range(rand.randrange(3))}
        body: tuple[Op, ...] = ()
        if depth and rand.random() < 0.25:
            body = tuple(self.op(depth - 1) for _ in range(rand.randrange(1, 4)))
        results: list[Tensor | tuple[Tensor, ...] | None] = []
        if body:
            results = [t for op in body for t in op.outputs][:2]
        else:
            for _ in range(rand.randrange(3)):
                results.append(self.result(used))
        plain = rand.choice(["aten.add", "custom.f", "autograd.X", "irgraph2.x.y"])
        name = plain if operands or results or rand.random() < 0.5 else rand.choice(WORDS)
        self.known.extend(t for r in results for t in _opened(r) if not body)
        return Op(
            name,
            tuple(operands),
            tuple(results),
            attributes,
            written,
            body,
            rand.choice(["main", "backward"]),
            rand.choice(["", "", "s7"]),
            rand.choice(["", "bot.0"]),
            rand.choice(["forward", "backward", "optimizer"]),
            {"time": Quantity(41.25, "us", 2.0), "by": "learned", "of": WORDS[3]}
            if rand.random() < 0.2
            else {},
            rand.choice(["", "et.json#47", WORDS[3]]),
        )

    def result(self, used: list[Tensor]) -> Tensor | tuple[Tensor, ...] | None:
        """Return a fresh tensor, a view of an operand, a list, or nothing."""
        kind = self.random.random()
        if kind < 0.1:
            return None
        if kind < 0.2:
            return tuple(self.fresh() for _ in range(self.random.randrange(3)))
        if used and kind < 0.4:
            base = used[0]
            return self.fresh(base.buffer, self.random.choice([0, 64]), base.device)
        return self.fresh()


def _opened(result: Tensor | tuple[Tensor, ...] | None) -> tuple[Tensor, ...]:
    if isinstance(result, Tensor):
        return (result,)
    return result or ()


def random_graph(seed: int, ops: int = 40) -> Graph:
    """Return a sound random graph."""
    return GraphMaker(seed).graph(ops)
