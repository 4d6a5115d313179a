"""Random training steps as Python source: views, writes in place, norms, returned values."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Shape = tuple[int, ...]
BATCH, WIDTH = 5, 6
"""Sizes at which shapes are worked out while a program is made; they differ from all others."""

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F

def build(B, D, device):
    class Net(nn.Module):
        def __init__(net):
            super().__init__()
            {declared}
    torch.manual_seed(0)
    with torch.device(device):
        net = Net()
    host = torch.randn(B, D)
    rows = torch.randint(3, (B,))
    bags = torch.randint(3, (B, 2))
    {made}
    def step():
        {body}
    step.model, step.inputs = net, (host, rows, bags)
    return step
"""


@dataclass(frozen=True)
class Program:
    """A step as lines of source, so that lines can be left out.

    Attributes:
        declared: lines that give the module its layers, parameters and buffers.
        made: lines that make the optimizer.
        body: lines of the step.
    """

    declared: tuple[str, ...]
    made: tuple[str, ...]
    body: tuple[str, ...]

    @property
    def source(self) -> str:
        """Return the whole source; it defines ``build(B, D, device)``."""
        join = "\n".join
        return HEAD.format(
            declared=join(self.declared or ("pass",)).replace("\n", "\n            "),
            made=join(self.made).replace("\n", "\n    "),
            body=join(self.body).replace("\n", "\n        "),
        )

    def build(self, batch: int = BATCH, width: int = WIDTH, device: str = "cpu") -> Any:
        """Return the step at a batch size and width."""
        names: dict[str, Any] = {}
        exec(compile(self.source, "program.py", "exec"), names)
        return names["build"](batch, width, device)

    def without(self, part: str, place: int) -> Program:
        """Return the program without one line."""
        lines = getattr(self, part)
        return replace(self, **{part: (*lines[:place], *lines[place + 1 :])})


@dataclass
class Maker:
    """Writes one random program; shapes are known by running each line as it is written."""

    rng: random.Random
    declared: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    count: int = 0
    shapes: dict[str, Shape] = field(default_factory=dict)
    layers: list[str] = field(default_factory=list)
    buffers: dict[str, Shape] = field(default_factory=dict)

    def fresh(self, base: str = "v") -> str:
        """Return a new name."""
        self.count += 1
        return f"{base}{self.count}"

    def value(self, *ranks: int) -> str:
        """Return one of the values so far, late ones more often; of one of these ranks."""
        fitting = [n for n, s in self.shapes.items() if not ranks or len(s) in ranks]
        return fitting[int(len(fitting) * self.rng.random() ** 0.5)] if fitting else "x"

    def like(self, name: str) -> str:
        """Return a value of the same shape, which may be the same."""
        shape = self.shapes[name]
        return self.rng.choice([n for n, s in self.shapes.items() if s == shape])

    def declare(self, line: str, base: str) -> str:
        """Give the module a member and return its name."""
        name = self.fresh(base)
        self.declared.append(line.format(name=f"net.{name}", quoted=repr(name)))
        return f"net.{name}"

    def buffer(self, shape: Shape) -> str:
        """Return a buffer of a shape, one that is there or a new one."""
        known = [name for name, s in self.buffers.items() if s == shape]
        if known and self.rng.random() < 0.5:
            return self.rng.choice(known)
        sizes = ", ".join({BATCH: "B", WIDTH: "D"}.get(n, str(n)) for n in shape)
        made = f"torch.ones({sizes or '()'})"
        name = self.declare("net.register_buffer({quoted}, " + made + ")", "keep")
        self.buffers[name] = shape
        return name

    def line(self, text: str, **shapes: Shape) -> None:
        """Add a line and the values that it makes."""
        self.body.append(text)
        self.shapes.update(shapes)


UNARY = ("relu", "sigmoid", "tanh", "neg", "sin", "abs", "square", "clone", "detach", "contiguous")
WRITES = ("relu_()", "neg_()", "mul_(0.5)", "add_(1.0)", "zero_()", "fill_(0.3)", "clamp_(-1, 1)",
          "mul_(1.0)", "sigmoid_()", "sub_(0.25)")  # fmt: skip


def unary(m: Maker) -> None:
    a, y = m.value(), m.fresh()
    m.line(f"{y} = {a}.{m.rng.choice(UNARY)}()", **{y: m.shapes[a]})


def function(m: Maker) -> None:
    a, y = m.value(1, 2), m.fresh()
    call = m.rng.choice(
        [
            "F.gelu({a})",
            "F.silu({a})",
            "F.softmax({a}, -1)",
            "F.dropout({a}, 0.0)",
            "torch.cumsum({a}, 0)",
            "F.dropout({a}, 0.5)",
            "torch.lerp({a}, {b}, 0.3)",
            "torch.where({a} > 0, {a}, {b})",
            "torch.maximum({a}, {b})",
            "{a} * 1.0",
            "{a} + 0.0",
            "{a}.to(torch.float64).to(torch.float32)",
            "{a}.to(torch.bfloat16).to(torch.float32)",
            "{a}.masked_fill({b} > 0, 0.5)",
            "torch.rand_like({a}) * {b}",
            "{a}.flip(0)",
            "{a}.sort(0).values",
            "torch.addcmul({a}, {b}, {a}, value=0.5)",
        ]
    )
    m.line(f"{y} = " + call.format(a=a, b=m.like(a)), **{y: m.shapes[a]})


def binary(m: Maker) -> None:
    a, y = m.value(), m.fresh()
    op = m.rng.choice("+-*")
    m.line(f"{y} = {a} {op} {m.like(a)}", **{y: m.shapes[a]})


def write(m: Maker) -> None:
    a = m.value()
    if m.rng.random() < 0.6:
        m.line(f"{a}.{m.rng.choice(WRITES)}")
    else:
        m.line(f"{a}.{m.rng.choice(['add_', 'mul_', 'copy_', 'sub_'])}({m.like(a)})")


def write_rows(m: Maker) -> None:
    a = m.value(2)
    shape = m.shapes[a]
    options = [
        f"{a}[0] = 0.5",
        f"{a}[:, 1:].mul_(2.0)",
        f"{a}[..., 0].zero_()",
        f"torch.relu_({a}[1:])",
        f"{a}.masked_fill_({m.like(a)} > 0, 0.25)",
    ]
    if shape[0] == BATCH:
        options += [f"{a}.index_add_(0, r, {m.like(a)})", f"{a}.index_fill_(0, r, 1.5)"]
    m.line(m.rng.choice(options))


def view(m: Maker) -> None:
    a, y = m.value(1, 2), m.fresh()
    shape = m.shapes[a]
    views: list[tuple[str, Shape]] = [(f"{a}[1:]", (shape[0] - 1, *shape[1:]))]
    if len(shape) == 2:
        rows, columns = shape
        views += [
            (f"{a}.t()", (columns, rows)),
            (f"{a}[:, :2]", (rows, min(columns, 2))),
            (f"{a}[0]", (columns,)),
            (f"{a}[:, 1]", (rows,)),
            (f"{a}.reshape(-1)", (rows * columns,)),
            (f"{a}.unsqueeze(0).squeeze(0)", shape),
            (f"{a}.transpose(0, 1)", (columns, rows)),
            (f"{a}.t().t()", shape),
            (f"{a}.diagonal()", (min(shape),)),
            (f"{a}.chunk(2, 1)[0]", (rows, -(-columns // 2))),
            (f"{a}.view_as({a})", shape),
            (f"{a}.unbind(0)[1]", (columns,)),
        ]
    else:
        views += [(f"{a}.expand(2, -1)", (2, *shape)), (f"{a}.view(1, -1)", (1, *shape))]
    call, made = m.rng.choice([(c, s) for c, s in views if all(s)] or [(a, shape)])
    m.line(f"{y} = {call}", **{y: made})


def joined(m: Maker) -> None:
    a, y = m.value(1, 2), m.fresh()
    b, (first, *rest) = m.like(a), m.shapes[a]
    call, shape = m.rng.choice(
        [
            (f"torch.cat([{a}, {b}])", (2 * first, *rest)),
            (f"torch.cat([{a}, {b}]).chunk(2)[1]", (first, *rest)),
            (f"torch.stack([{a}, {b}]).sum(0)", (first, *rest)),
        ]
    )
    m.line(f"{y} = {call}", **{y: shape})


def product(m: Maker) -> None:
    a = m.value(2)
    fitting = [n for n, s in m.shapes.items() if len(s) == 2 and s[0] == m.shapes[a][1]]
    y = m.fresh()
    if fitting:
        b = m.rng.choice(fitting)
        m.line(f"{y} = {a} @ {b} * 0.3", **{y: (m.shapes[a][0], m.shapes[b][1])})
    else:
        m.line(f"{y} = {a} @ {a}.t() * 0.3", **{y: (m.shapes[a][0], m.shapes[a][0])})


def reduced(m: Maker) -> None:
    a, y = m.value(1, 2), m.fresh()
    shape = m.shapes[a]
    call, made = m.rng.choice(
        [
            ("sum()", ()),
            ("mean()", ()),
            ("mean(0)", shape[1:]),
            ("sum(-1)", shape[:-1]),
            ("amax(0)", shape[1:]),
            ("max(0).values", shape[1:]),
            ("norm()", ()),
            ("var(-1)", shape[:-1]) if shape[-1] > 1 else ("sum(-1)", shape[:-1]),
        ]
    )
    m.line(f"{y} = {a}.{call}", **{y: made})


def layer(m: Maker) -> None:
    wide = [n for n, s in m.shapes.items() if len(s) == 2 and s[1] == WIDTH and s[0] > 1]
    if not wide:
        return
    a, y = m.rng.choice(wide), m.fresh()
    kind = m.rng.choice(
        [
            "nn.Linear(D, D)",
            "nn.Linear(D, D, bias=False)",
            "nn.BatchNorm1d(D)",
            "nn.LayerNorm(D)",
            "nn.BatchNorm1d(D, affine=False)",
            "nn.BatchNorm1d(D, track_running_stats=False)",
            "nn.BatchNorm1d(D).eval()",
            "nn.Sequential(nn.Linear(D, D), nn.ReLU())",
            "nn.Sequential(nn.Linear(D, D), nn.ReLU(inplace=True), nn.Linear(D, D))",
        ]
    )
    known = m.rng.choice(m.layers) if m.layers and m.rng.random() < 0.3 else ""
    name = known or m.declare("{name} = " + kind, "layer")
    if not known:
        m.layers.append(name)
    m.line(f"{y} = {name}({a})", **{y: m.shapes[a]})
    if "BatchNorm1d(D)" in kind and not known and m.rng.random() < 0.5:
        z = m.fresh()
        m.line(f"{z} = {name}.running_mean.clone()", **{z: (WIDTH,)})


def lookup(m: Maker) -> None:
    y = m.fresh()
    kind = m.rng.choice(["nn.Embedding(4, D)", 'nn.EmbeddingBag(4, D, mode="sum")'])
    name = m.declare("{name} = " + kind, "table")
    m.line(f"{y} = {name}({'g' if 'Bag' in kind else 'r'})", **{y: (BATCH, WIDTH)})
    if m.rng.random() < 0.4:
        z = m.fresh()
        m.line(f"{z} = F.linear({y}, {name}.weight)", **{z: (BATCH, 4)})


def keep(m: Maker) -> None:
    a = m.value()
    name = m.buffer(m.shapes[a])
    call = m.rng.choice(["copy_({a})", "add_({a})", "lerp_({a}, 0.1)", "mul_(0.9).add_({a})"])
    m.line(f"{name}." + call.format(a=f"{a}.detach()"))


def read_buffer(m: Maker) -> None:
    if m.buffers:
        name, y = m.rng.choice(list(m.buffers)), m.fresh()
        m.line(
            f"{y} = {name}{m.rng.choice(['.clone()', ' * 1.0', '.detach()'])}",
            **{y: m.buffers[name]},
        )


def to_host(m: Maker) -> None:
    a = m.value(0)
    if not m.shapes[a]:
        m.line(f"{m.fresh('told')} = {a}.detach().to('cpu')")


def foreach(m: Maker) -> None:
    a = m.value(1, 2)
    b = m.like(a)
    y, z = m.fresh(), m.fresh()
    if m.rng.random() < 0.5:
        m.line(
            f"{y}, {z} = torch._foreach_mul([{a}, {b}], 2.0)", **{y: m.shapes[a], z: m.shapes[a]}
        )
    else:
        m.line(f"torch._foreach_add_([{a}, {b}], 0.5)")


PARTS: Sequence[tuple[Callable[[Maker], None], int]] = (
    (unary, 5), (function, 5), (binary, 4), (write, 4), (write_rows, 2), (view, 6), (joined, 2),
    (product, 2), (reduced, 2), (layer, 5), (lookup, 1), (keep, 3), (read_buffer, 2), (to_host, 1),
    (foreach, 1),
)  # fmt: skip

UPDATES = (
    "for p in net.parameters():\n    p.data.add_(p.grad, alpha=-0.1) if p.grad is not None else 0",
    "with torch.no_grad():\n    for p in net.parameters():\n"
    "        if p.grad is not None: p.add_(p.grad, alpha=-0.1); p.grad.zero_()",
    "opt.step()",
)
OPTIMIZERS = (
    "SGD(net.parameters(), lr=0.1)", "SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=False)",
    "SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=True, weight_decay=0.01)",
    "Adam(net.parameters(), foreach=False)", "AdamW(net.parameters(), foreach=True)",
    "Adagrad(net.parameters(), foreach=False)",
)  # fmt: skip


def written(seed: int) -> Program:
    """Return a random program, which torch may refuse to run."""
    rng = random.Random(seed)
    m = Maker(rng)
    m.line("x = host.to(device, copy=True)", x=(BATCH, WIDTH))
    m.line("r, g = rows.to(device, copy=True), bags.to(device, copy=True)")
    parts, weights = zip(*PARTS, strict=True)
    for part in rng.choices(parts, weights, k=rng.randrange(3, 16)):
        part(m)
    made: tuple[str, ...] = ()
    trained = rng.random() < 0.7
    if trained:
        update = rng.choice(UPDATES)
        m.body.insert(0, f"net.zero_grad(set_to_none={rng.random() < 0.7})")
        if update == "opt.step()":
            made = (f"opt = torch.optim.{rng.choice(OPTIMIZERS)}", "step_optimizer = opt")
        loss = m.value(1, 2)
        m.line(f"loss = ({loss} * {loss}).mean()", loss=())
        m.body += ["loss.backward()", update]
    for name in rng.sample(sorted(m.shapes), min(len(m.shapes), rng.randrange(3))):
        kept = m.buffer(m.shapes[name])
        m.line(f"{kept}.copy_({name}.detach())")
    m.body.append(f"return {returned(m)}")
    return Program(tuple(m.declared), made, tuple(m.body))


def returned(m: Maker) -> str:
    """Return what the step gives back: values, views, copies and buffers, nested and repeated."""
    rng = m.rng
    names = [
        *rng.choices(sorted(m.shapes), k=rng.randrange(4)),
        *rng.sample(sorted(m.buffers), min(len(m.buffers), rng.randrange(2))),
    ]
    forms = ("{}", "{}", "{}.detach()", "{}.clone()", "{}.detach().clone()")
    items = [rng.choice(forms).format(name) for name in names]
    if not items:
        return "None"
    nested = rng.choice(["({},)", "[{}]", "{{'a': [{}]}}", "({}, 3.0)"])
    return items[0] if len(items) == 1 and rng.random() < 0.5 else nested.format(", ".join(items))


def program(seed: int) -> Program:
    """Return a random program that runs twice on the CPU."""
    for attempt in range(1000):
        found = written(seed * 1000 + attempt)
        if runs(found):
            return found
    raise AssertionError(f"no program of seed {seed} runs")


def runs(found: Program) -> bool:
    """Tell whether torch runs a program."""
    try:
        step = found.build()
        step()
        step()
    except (RuntimeError, IndexError, ValueError, NotImplementedError, NameError, TypeError):
        return False
    return True
