"""Small models for tests of scripts."""

from __future__ import annotations

from collections.abc import Iterable

from irgraph.ir.graph import Graph
from irgraph.text import parse

HEAD = 'model "m" { format = 1  dims = {B = 4} }\ndevice @gpu0 "v100"\n'


def model(text: str, schemas: Iterable[str] = ()) -> Graph:
    """Return the graph of declarations and ops; the header is added."""
    declared = "".join(f'schema "{schema}"\n' for schema in schemas)
    return parse(HEAD + declared + text, "m.ir")


MLP = """
input %x0 : f32[B, 8] in $x0
param %w1 "bot.0.weight" : f32[8, 8] in $w1
param %c1 "bot.0.bias" : f32[8] in $c1
param %w2 "top.0.weight" : f32[8, 8] in $w2
param %c2 "top.0.bias" : f32[8] in $c2
%h1 = aten.linear(%x0, %w1, %c1) : f32[B, 8] in $h1 in module "bot.0" from "et#1" {
  %t1 = aten.t(%w1) : f32[8, 8; 1, 8] in $w1
  %h1 = aten.addmm(%c1, %x0, %t1) : f32[B, 8] in $h1 from "et#3"
}
%y1 = aten.relu(%h1) : f32[B, 8] in $y1 in module "bot.1" from "et#4"
%h2 = aten.linear(%y1, %w2, %c2) : f32[B, 8] in $h2 in module "top.0" {
  %t2 = aten.t(%w2) : f32[8, 8; 1, 8] in $w2
  %h2 = aten.addmm(%c2, %y1, %t2) : f32[B, 8] in $h2
}
aten.relu_(%h2!) in module "top.1"
%s = aten.sum(%h2) : f32[] in $s
"""
"""Two layers; the second activation works in place."""


def mlp() -> Graph:
    """Return the two layers."""
    return model(MLP)


def table(k: int, rows: int = 100, width: int = 8, dtype: str = "f32") -> str:
    """Return the declarations of a table and its inputs."""
    return (
        f'param %w{k} "tables.{k}.weight" : {dtype}[{rows}, {width}] in $w{k}\n'
        f"input %i{k} : i64[20] in $i{k}\n"
        f"input %o{k} : i64[B] in $o{k}\n"
    )


def bag(k: int, more: str = "", width: int = 8, dtype: str = "f32", indices: str = "") -> str:
    """Return one lookup; ``more`` are further arguments, ``indices`` other ones."""
    looked_up = indices or f"%i{k}"
    return (
        f"%y{k}, %a{k}, %b{k}, %m{k} = aten.embedding_bag(%w{k}, {looked_up}, %o{k}{more})"
        f" : {dtype}[B, {width}] in $y{k}, i64[20] in $a{k}, i64[B] in $b{k}, i64[0] in $m{k}"
        f' in module "tables.{k}"\n'
    )


def backward(k: int, rows: int = 100, width: int = 8, mode: int = 0, extra: str = "") -> str:
    """Return one table's backward pass and the hand-over of its gradient."""
    psw = extra or "per_sample_weights = none"
    return (
        f"autograd.EmbeddingBagBackward0(%g{k}) on backward phase backward {{\n"
        f"  %d{k} = aten._embedding_bag_backward(%g{k}, %i{k}, %o{k}, %a{k}, %b{k}, %m{k},"
        f" num_weights = {rows}, scale_grad_by_freq = false, mode = {mode}, sparse = false,"
        f" {psw}) : f32[{rows}, {width}] in $d{k}\n}}\n"
        f"autograd.AccumulateGrad(%d{k}) on backward phase backward {{\n"
        f"  %e{k} = aten.detach(%d{k}) : f32[{rows}, {width}] in $d{k}\n}}\n"
    )


def gradient(k: int, width: int = 8) -> str:
    """Return the gradient of one table's result, as an input."""
    return f"input %g{k} : f32[B, {width}] in $g{k}\n"


def update(k: int, rate: str = "-0.1") -> str:
    """Return one table's update by plain SGD."""
    return f"  aten.add_(%w{k}!, %e{k}, alpha = {rate})\n"


def training(count: int, rate: str = "-0.1") -> Graph:
    """Return lookups in some tables, their backward passes in reverse, and their updates."""
    every = range(count)
    return model(
        "".join(table(k) + gradient(k) for k in every)
        + "".join(map(bag, every))
        + "".join(map(backward, reversed(every)))
        + '"Optimizer.step#SGD.step"() phase optimizer {\n'
        + "".join(update(k, rate) for k in every)
        + "}\n"
    )
