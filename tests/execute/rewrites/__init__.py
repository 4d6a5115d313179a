"""Wrong rewrites of small functions, by kind, and right ones that look as different.

A line of the files is ``kind: before -> after``, two expressions of the operands below; after
``gradient:``, the gradients of their sums of squares.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (as everybody writes it)

from irgraph.capture.live import capture
from irgraph.ir.graph import Graph

T = torch.Tensor

SHAPES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("x", "y", "p", "g", "m", "v", "q", "k"), (6, 8)),
    **dict.fromkeys(("w", "u"), (8, 8)),
    "b": (8,),
    "image": (2, 3, 8, 8),
    "kernel": (4, 3, 1, 1),
    "scores": (6, 5),
    "classes": (6,),
    "counts": (6, 8),
}
"""Shapes of operands, by name."""

TYPES = {"classes": torch.int64, "counts": torch.int32}
"""Types of operands that are not f32, by name."""

INF = float("inf")


@dataclass(frozen=True)
class Rewrite:
    """Two expressions of operands; ``is_gradient`` if their gradients are compared."""

    kind: str
    before: str
    after: str
    is_gradient: bool

    def __str__(self) -> str:
        return f"{self.kind}: {self.before} -> {self.after}"

    def graphs(self) -> tuple[Graph, Graph]:
        """Return the captured expressions."""
        return self._captured(self.before), self._captured(self.after)

    @property
    def operands(self) -> list[str]:
        """Names of operands of either expression."""
        trees = map(ast.parse, (self.before, self.after))
        used = {n.id for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Name)}
        return [name for name in SHAPES if name in used]

    def _captured(self, expression: str) -> Graph:
        names = self.operands
        function: Callable[..., T] = eval(f"lambda {', '.join(names)}: {expression}", globals())
        operands = [
            torch.zeros(SHAPES[name], dtype=TYPES.get(name, torch.float32), device="meta")
            for name in names
        ]

        def step() -> Any:
            # names of inputs go by the order of their first use: the same in both functions
            views = [t.view_as(t) for t in operands]
            return gradients(function, views) if self.is_gradient else function(*views)

        return capture(step, device="meta").graph


def gradients(function: Callable[..., T], operands: Sequence[T]) -> Sequence[T]:
    """Return the gradients of a function's sum of squares."""
    leaves = [t.detach().requires_grad_() for t in operands]
    result = function(*leaves)
    return torch.autograd.grad((result * result).sum(), leaves)


def norm(x: T, eps: float, mean: bool = True, unbiased: bool = False) -> T:
    """Return a norm of rows spelt out."""
    centred = x - x.mean(-1, keepdim=True) if mean else x
    variance = x.var(-1, unbiased=unbiased, keepdim=True) if mean else x.square().mean(-1, True)
    return centred * torch.rsqrt(variance + eps)


def batch_norm(x: T) -> T:
    """Return a norm of channels spelt out."""
    centred = x - x.mean((0, 2, 3), keepdim=True)
    return centred / (centred.square().mean((0, 2, 3), keepdim=True) + 1e-5).sqrt()


def softmax(x: T) -> T:
    """Return a softmax of rows spelt out."""
    shifted = (x - x.amax(-1, keepdim=True)).exp()
    return shifted / shifted.sum(-1, keepdim=True)


def tanh_gelu(x: T) -> T:
    """Return the approximation of GELU by a hyperbolic tangent."""
    return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


def attention(
    q: T, k: T, v: T, *, scale: float, offset: int = 0, window: int = 99, fill: float = -INF
) -> T:
    """Return causal attention spelt out, over a window of positions."""
    scores = q @ k.t() * scale
    ones = torch.ones_like(scores, dtype=torch.bool)
    seen = ones.tril(offset) & ones.triu(offset - window + 1)
    return scores.masked_fill(~seen, fill).softmax(-1) @ v


def fused_attention(q: T, k: T, v: T) -> T:
    """Return torch's attention at half the scores."""
    return F.scaled_dot_product_attention(q[None], k[None], v[None], scale=0.5)[0]


def adam(p: T, g: T, m: T, v: T, *, eps: float = 1e-8, inside: bool = False, bias: int = 1) -> T:
    """Return a parameter after a step of Adam."""
    first = m * 0.9 + g * 0.1
    second = v.abs() * 0.999 + g * g * 0.001
    corrected = second / (1 - 0.999**bias)
    root = (corrected + eps).sqrt() if inside else corrected.sqrt() + eps
    return p - 1e-3 * (first / (1 - 0.9**bias)) / root


def clip(g: T, *, limit: float = 1.0, eps: float = 1e-6, clamped: bool = True) -> T:
    """Return a gradient clipped to a norm."""
    factor = limit / (g.norm() + eps)
    return g * (factor.clamp(max=1.0) if clamped else factor)


def rope(x: T, *, sign: float = -1.0, base: float = 1e4) -> T:
    """Return rotated halves of rows."""
    half = x.shape[-1] // 2
    positions, pairs = (torch.arange(n, device=x.device) for n in (x.shape[0], half))
    angles = torch.outer(positions, base ** (-pairs / half))
    a, b = x[:, :half], x[:, half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos + sign * b * sin, b * cos - sign * a * sin], -1)


def focal(x: T, *, power: int = 2) -> T:
    """Return a focal loss of ones."""
    return (-((1 - torch.sigmoid(x)) ** power) * F.logsigmoid(x)).mean()


def _read(name: str) -> Iterator[Rewrite]:
    for line in (Path(__file__).parent / name).read_text().splitlines():
        kind, _, expressions = line.partition(": ")
        before, arrow, after = expressions.partition(" -> ")
        assert arrow, line
        text = before.removeprefix("gradient: ")
        yield Rewrite(kind, text, after, text != before)


WRONG = list(_read("wrong.txt"))
"""Rewrites that compute something else, if only on some values."""

RIGHT = list(_read("right.txt"))
"""Rewrites that compute the same but for roundings."""
