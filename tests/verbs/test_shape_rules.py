"""Where a rule gives sizes, torch takes the call and gives the same."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from itertools import count
from random import Random

import pytest

from irgraph.ir.op import Op, Value
from irgraph.ir.resize import with_dims
from irgraph.ir.tensor import DType, Tensor
from irgraph.shapes import ShapeError, plain_sizes
from irgraph.text import parse
from irgraph.verbs import torch_check
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.shape_rules import RULES, shapes_by_rule
from irgraph.verbs.torch_check import check_sizes

STEP = resources.files("costmodels.evaluate") / "data" / "dlrm_default.ir"

SIZES = (0, 1, 2, 3, 4, 6)


class Draw:
    """Draws operands: small sizes, so that many happen to fit."""

    def __init__(self, seed: int) -> None:
        self.random, self.names = Random(seed), count()

    def size(self) -> int:
        return self.random.choice(SIZES)

    def axis(self) -> int:
        return self.random.randint(-4, 3)

    def tensor(self, *shape: int, rank: int | None = None, dtype: str = "f32") -> Tensor:
        if rank is not None:
            shape = tuple(self.size() for _ in range(rank))
        name = f"t{next(self.names)}"
        return Tensor(name, dtype, shape, name)

    def any(self) -> Tensor:
        return self.tensor(rank=self.random.randint(0, 3))

    def near(self, tensor: Tensor) -> Tensor:
        """Return a tensor that is mostly as large as another."""
        return self.tensor(*tensor.shape) if self.random.random() < 0.7 else self.any()


def bag(draw: Draw) -> Op:
    weight, last = draw.tensor(rank=2), draw.random.random() < 0.5
    indices, offsets = (draw.tensor(rank=1, dtype="i64") for _ in range(2))
    attributes: dict[str, Value] = {"mode": draw.random.choice([0, 1, 2])}
    if last:
        attributes["include_last_offset"] = True
    return Op("aten._embedding_bag", (weight, indices, offsets), (), attributes)


def bag_backward(draw: Draw) -> Op:
    gradient, bags = draw.tensor(rank=2), draw.size()
    parts = [draw.tensor(n, dtype="i64") for n in (draw.size(), bags, draw.size(), bags, 0)]
    attributes: dict[str, Value] = {
        "num_weights": draw.size(),
        "scale_grad_by_freq": False,
        "mode": 0,
        "sparse": False,
        "per_sample_weights": None,
    }
    return Op("aten._embedding_bag_backward", (gradient, *parts), (), attributes)


def cut(draw: Draw) -> Op:
    bounds = {name: draw.random.randint(-7, 7) for name in ("start", "end") if draw.size()}
    step = {"step": draw.random.choice([1, 1, 2, 3])}
    return Op("aten.slice", (draw.any(),), (), {"dim": draw.axis(), **bounds, **step})


def product(name: str, rank: int) -> Callable[[Draw], Op]:
    def made(draw: Draw) -> Op:
        first = draw.tensor(rank=rank)
        fitting = draw.tensor(*first.shape[:-2], first.shape[-1], draw.size())
        factors = (first, draw.random.choice([fitting, draw.tensor(rank=rank)]))
        bias = (draw.any(),) if name == "aten.addmm" else ()
        return Op(name, (*bias, *factors))

    return made


def total(draw: Draw) -> Op:
    axes = [None, (), (0,), (draw.axis(),), (draw.axis(), draw.axis())]
    attributes: dict[str, Value] = {}
    if (of := draw.random.choice(axes)) is not None:
        attributes = {"dim": of, "keepdim": draw.random.random() < 0.5}
    return Op("aten.sum", (draw.any(),), (), attributes)


def joined(draw: Draw) -> Op:
    first = draw.any()
    parts = (first, *(draw.near(first) for _ in range(draw.random.randint(0, 2))))
    return Op("aten.cat", (parts,), (), {"dim": draw.axis()})


def viewed(draw: Draw) -> Op:
    sizes = tuple(draw.random.choice([-2, -1, 0, 1, 2, 3, 4, 6, 12]) for _ in range(draw.size()))
    return Op("aten.view", (draw.any(),), (), {"size": sizes})


def loss(draw: Draw) -> Op:
    given = draw.any()
    attributes: dict[str, Value] = {"reduction": draw.random.choice([0, 1, 2])}
    return Op("aten.binary_cross_entropy", (given, draw.near(given)), (), attributes)


def loss_backward(draw: Draw) -> Op:
    given, gradient = draw.any(), draw.tensor(rank=draw.random.randint(0, 1))
    name = "aten.binary_cross_entropy_backward"
    return Op(name, (gradient, given, draw.near(given)))


def selected(draw: Draw) -> Op:
    return Op("aten.select", (draw.any(),), (), {"dim": draw.axis(), "index": draw.axis()})


def turned(draw: Draw) -> Op:
    return Op("aten.transpose", (draw.any(),), (), {"dim0": draw.axis(), "dim1": draw.axis()})


def filled(draw: Draw) -> Op:
    sizes = tuple(draw.random.choice([-1, 0, 1, 5]) for _ in range(draw.size()))
    return Op("aten.new_zeros", (draw.any(),), (), {"size": sizes})


def backward(name: str, **attributes: Value) -> Callable[[Draw], Op]:
    def made(draw: Draw) -> Op:
        first = draw.any()
        return Op(name, (first, draw.near(first)), (), attributes)

    return made


CASES: dict[str, Callable[[Draw], Op]] = {
    "aten.select": selected,
    "aten.slice": cut,
    "aten._embedding_bag": bag,
    "aten._embedding_bag_backward": bag_backward,
    "aten.mm": product("aten.mm", 2),
    "aten.bmm": product("aten.bmm", 3),
    "aten.addmm": product("aten.addmm", 2),
    "aten.sum": total,
    "aten.cat": joined,
    "aten.t": lambda draw: Op("aten.t", (draw.any(),)),
    "aten.transpose": turned,
    "aten.view": viewed,
    "aten.new_zeros": filled,
    "aten._to_copy": lambda draw: Op("aten._to_copy", (draw.any(),), (), {"dtype": DType("f32")}),
    "aten.threshold_backward": backward("aten.threshold_backward", threshold=0),
    "aten.gelu_backward": backward("aten.gelu_backward"),
    "aten.binary_cross_entropy": loss,
    "aten.binary_cross_entropy_backward": loss_backward,
}


def test_every_rule_is_tried() -> None:
    assert CASES.keys() == RULES.keys()


@pytest.mark.parametrize("name", CASES)
def test_torch_gives_what_a_rule_is_sure_of(name: str) -> None:
    pytest.importorskip("torch")
    draw, sure = Draw(7), 0
    for _ in range(400):
        op = CASES[name](draw)
        found = shapes_by_rule(op)
        if found is None:
            continue
        sure += 1
        made = torch_check._shapes(plain_sizes(op, (), {}))
        assert made == found, op
    assert sure > 20


def test_rules_leave_alone_what_torch_refuses() -> None:
    """The draws above hold calls that torch refuses: the test can fail."""
    pytest.importorskip("torch")
    draw, refused = Draw(8), set()
    for name, case in CASES.items():
        for op in (case(draw) for _ in range(60)):
            try:
                plain_sizes(op, (), {})
            except ShapeError:
                refused.add(name)
                assert shapes_by_rule(op) is None, op
    assert len(refused) > 12


def test_a_rule_wants_its_sizes_to_be_those_of_the_call() -> None:
    pytest.importorskip("torch")
    text = """model "m" { format = 1  dims = {B = 8} }

device @gpu0 "v100"
input %x : f32[B, 8] in $x
input %w : f32[8, 4] in $w

%y = aten.t(%x) : f32[8, B; 1, 8] in $x
%z = aten.mm(%y, %w) : f32[8, 4] in $z
"""
    graph = parse(text)
    with pytest.raises(RefusedError, match=r"aten\.mm does not take this size"):
        check_sizes(graph, with_dims(graph, {"B": 9}))


def test_a_view_that_a_rule_knows_stays_within_its_operand() -> None:
    pytest.importorskip("torch")
    text = """model "m" { format = 1  dims = {B = 8} }

device @gpu0 "v100"
input %x : f32[2, 8] in $x

%y = aten.select(%x, 0, 1) : f32[8] in $x+4*B
"""
    graph = parse(text)
    with pytest.raises(RefusedError, match="beyond what it is a view of"):
        check_sizes(graph, with_dims(graph, {"B": 16}))


def test_the_ops_of_a_step_need_no_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    step, names = parse(STEP.read_text(encoding="utf-8")), set()
    monkeypatch.setattr(torch_check, "_mismatch", lambda op, graph: names.add(op.name) or "")
    check_sizes(step, with_dims(step, {"B": 779}))
    assert names <= {"aten.index", "aten.mse_loss", "aten.mse_loss_backward"}
