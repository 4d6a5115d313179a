"""Dependences from byte ranges, against a brute-force oracle."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from irgraph.ir.dependence import dependences, shortest_chain
from irgraph.ir.effects import effects
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor, overlap
from irgraph.text import parse
from tests.strategies import random_graph


def closure(count: int, pairs: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Return the transitive closure of ordered pairs."""
    after: list[set[int]] = [set() for _ in range(count)]
    for b in range(count):
        for a in range(b):
            if (a, b) in pairs:
                after[b] |= {a} | after[a]
    return {(a, b) for b in range(count) for a in after[b]}


def oracle(ops: tuple[Op, ...]) -> set[tuple[int, int]]:
    """Compare every pair of ops, touch by touch."""
    pairs = set()
    touched = [effects(op) for op in ops]
    for b in range(len(ops)):
        for a in range(b):
            x, y = touched[a], touched[b]
            names = {t.name for op in ops[a].walk() for t in op.outputs}
            used = {t.name for op in ops[b].walk() for t in op.inputs}
            conflict = (
                any(overlap(t, u) for t in x.writes for u in (*y.reads, *y.writes))
                or any(overlap(t, u) for t in x.reads for u in y.writes)
                or (x.random and y.random)
                or x.barrier
                or y.barrier
                or bool(names & used)
            )
            if conflict:
                pairs.add((a, b))
    return pairs


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**9))
def test_dependences_order_just_what_conflicts(seed: int) -> None:
    ops = random_graph(seed, 30).ops
    known = tuple(op for op in ops if not effects(op).barrier) if seed % 2 else ops
    found = {(d.before, d.after) for d in dependences(known)}
    wanted = oracle(known)
    assert closure(len(known), found) == closure(len(known), wanted)
    assert found <= wanted


def tensor(name: str, buffer: str, start: int = 0, size: int = 16) -> Tensor:
    return Tensor(name, "f32", (size,), buffer, None, start * 4)


def test_views_of_disjoint_bytes_do_not_depend() -> None:
    whole, x, y = tensor("w", "b", 0, 32), tensor("x", "b"), tensor("y", "b", 16)
    ops = [
        Op("aten.relu_", (x,), written=frozenset({"x"})),
        Op("aten.relu_", (y,), written=frozenset({"y"})),
        Op("aten.relu", (whole,), (tensor("z", "c", 0, 32),)),
    ]
    kinds = {(d.before, d.after, d.kind) for d in dependences(ops)}
    assert kinds == {(0, 2, "raw"), (1, 2, "raw")}


def test_the_shortest_chain_names_each_step() -> None:
    a, b, c = tensor("a", "1"), tensor("b", "2"), tensor("c", "3")
    ops = [
        Op("aten.relu", (a,), (b,)),
        Op("aten.relu", (b,), (c,)),
        Op("aten.relu_", (c,), written=frozenset({"c"})),
    ]
    chain = shortest_chain(dependences(ops), 0, 2)
    assert [(d.before, d.after) for d in chain] == [(0, 1), (1, 2)]
    assert shortest_chain(dependences(ops), 2, 0) == []


def test_random_ops_keep_their_order() -> None:
    a = tensor("a", "1")
    ops = [Op("aten.bernoulli", (a,), (tensor(n, n),)) for n in "xy"]
    assert [d.kind for d in dependences(ops)] == ["random"]


def test_an_op_without_a_schema_is_a_barrier_but_a_label_is_not() -> None:
    a = tensor("a", "1")
    ops = [
        Op("aten.relu", (a,), (tensor("b", "2"),)),
        Op("custom.opaque", (a,)),
        Op("ProfilerStep#1"),
        Op("aten.relu", (a,), (tensor("c", "3"),)),
    ]
    assert {(d.before, d.after) for d in dependences(ops)} == {(0, 1), (1, 2), (1, 3)}
    assert effects(ops[2]).barrier is False


def test_a_batch_norm_in_training_writes_its_running_statistics() -> None:
    graph = parse(
        'model "m" { format = 1 }\n\ndevice @gpu0 "v100"\n'
        "input %x : f32[2, 3, 4, 4] in $x\nstate %m : f32[3] in $m\nstate %v : f32[3] in $v\n"
        "%n = aten.neg(%m) : f32[3] in $n\n"
        "%y, %a, %b = aten.native_batch_norm(%x, weight = none, bias = none, running_mean = %m,"
        " running_var = %v, training = true, momentum = 0.1, eps = 1e-05)"
        " : f32[2, 3, 4, 4] in $y, f32[3] in $a, f32[3] in $b\n"
        "%z = aten.neg(%v) : f32[3] in $z\n"
    )
    found = {(d.before, d.after, d.kind) for d in dependences(graph.ops)}
    assert found == {(0, 1, "war"), (1, 2, "raw")}


def test_an_unsafe_split_gives_views_although_its_schema_does_not_say_so() -> None:
    whole, part = Tensor("x", "f32", (4,), "b1"), Tensor("y", "f32", (2,), "b1", offset=8)
    split = Op("aten.unsafe_split", (whole,), ((part,),), {"split_size": 2})
    assert effects(split).writes == ()


def test_a_write_of_all_bytes_hides_what_was_there_before() -> None:
    """Only direct dependences are told: of three writes of the same bytes, two pairs."""
    whole, half = Tensor("x", "f32", (4,), "b"), Tensor("h", "f32", (2,), "b")
    zeros = [Op("aten.zero_", (t,), written=frozenset({t.name})) for t in (whole,) * 3]
    found = dependences(zeros, frozenset({"x"}))
    assert {(d.before, d.after) for d in found} == {(0, 1), (1, 2)}
    first = Op("aten.zero_", (half,), written=frozenset({"h"}))
    found = dependences([first, *zeros[:2]], frozenset({"x", "h"}))
    assert {(d.before, d.after) for d in found} == {(0, 1), (1, 2)}
    found = dependences([zeros[0], first, zeros[1]], frozenset({"x", "h"}))
    assert {(d.before, d.after) for d in found} == {(0, 1), (1, 2), (0, 2)}
