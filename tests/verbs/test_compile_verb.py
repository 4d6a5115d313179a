"""``compile``: Inductor says what shares a kernel, and what is computed stays the same."""

from __future__ import annotations

from unittest import mock

import pytest

from irgraph.capture.live import capture
from irgraph.execute import compare
from irgraph.ir.dependence import Dependence
from irgraph.ir.graph import Graph
from irgraph.ops.verify import verify
from irgraph.text import parse, print_graph
from irgraph.verbs.compiled import CALL, KERNEL, compile_regions
from irgraph.verbs.compiled.inductor import Kernel
from irgraph.verbs.compiled.order import Group, groups_of, order_groups
from tests.execute.models import conv_step, eager_step

SCHEDULED = "irgraph.verbs.compiled.inductor._schedule"
HEAD = 'model "m" {{ format = 2 }}\n\ndevice @gpu0 "a100"\n{}\n'


def made(graph: Graph) -> Graph:
    done = compile_regions(graph).graph
    assert verify(done) == []
    assert parse(print_graph(done)) == done
    found = compare(graph, done)
    assert found.same, found
    return done


def kernels(graph: Graph) -> list[list[str]]:
    return [[op.base for op in one.body] for one in graph.walk() if one.name == KERNEL]


def test_a_product_keeps_its_kernel_and_what_follows_shares_one() -> None:
    graph = parse(
        HEAD.format("""input %x : f32[8, 4] in $x
param %w : f32[4, 4] in $w

%h = aten.mm(%x, %w) : f32[8, 4] in $h
%s = aten.sigmoid(%h) : f32[8, 4] in $s
%t = aten.t(%s) : f32[4, 8; 1, 4] in $s
%y = aten.mul(%t, 2.0) : f32[4, 8; 1, 4] in $y
return %y""")
    )
    done = made(graph)
    assert kernels(done) == [["sigmoid", "t", "mul"]]
    assert [op.name for op in done.ops[0].body] == ["aten.mm", KERNEL]
    (call,) = (op for op in done.ops if op.name == CALL)
    assert [t.name for t in call.inputs] == ["x", "w"]
    assert [t.name for t in call.outputs] == ["y"]


def test_training_steps_compute_the_same_and_gradients_are_kept_behind_the_call() -> None:
    for step in (eager_step, conv_step):
        done = made(capture(step(4, "meta"), device="meta").graph)
        calls = [i for i, op in enumerate(done.ops) if op.name == CALL]
        kept = [i for i, op in enumerate(done.ops) if op.name == "autograd.AccumulateGrad"]
        assert calls and kept and min(kept) > max(calls)
        assert kernels(done)


def test_what_is_written_in_place_is_written_by_its_kernel() -> None:
    graph = parse(
        HEAD.format("""param %w : f32[4] in $w
input %x : f32[4] in $x

%a = aten.neg(%x) : f32[4] in $a
aten.add_(%w!, %a)
%b = aten.exp(%w) : f32[4] in $b
return %b""")
    )
    (call,) = made(graph).ops
    assert call.written == {"w"}


def test_dropout_shares_a_kernel_with_what_it_drops() -> None:
    graph = parse(
        HEAD.format("""input %x : f32[8, 4] in $x

%s = aten.sigmoid(%x) : f32[8, 4] in $s
%d, %m = aten.native_dropout(%s, p = 0.5, train = true) : f32[8, 4] in $d, bool[8, 4] in $m
return %d, %m""")
    )
    assert kernels(made(graph)) == [["sigmoid", "native_dropout"]]


@pytest.mark.parametrize(
    ("ties", "order"),
    [
        ([(0, 1), (1, 2)], [(0,), (1,), (2,)]),  # 0 and 2 share a kernel, and 1 lies between
        ([(0, 2)], [(0, 2), (1,)]),
        ([(1, 2)], [(1,), (0, 2)]),
    ],
)
def test_a_kernel_that_depends_on_itself_is_split(
    ties: list[tuple[int, int]], order: list[tuple[int, ...]]
) -> None:
    made_of = [Kernel((0, 2), False), Kernel((1,), True)]
    groups = groups_of(made_of, [False, True, False], {})
    found = order_groups(groups, [Dependence(a, b, "def") for a, b in ties])
    assert [group.members for group in found] == order


def test_what_two_kernels_compute_belongs_to_the_first_and_a_kernel_without_ops_is_a_launch() -> (
    None
):
    shared = [Kernel((0, 1), False), Kernel((0, 2), False), Kernel((2,), False)]
    assert groups_of(shared, [False] * 3, {}) == [Group((0, 1), 1), Group((2,), 2)]


def test_a_run_of_ops_at_which_the_compiler_fails_stays_as_it_is() -> None:
    graph = parse(
        HEAD.format("""input %x : c64[8, 4] in $x
input %z : f32[8, 4] in $z

%y = aten._conj_physical(%x) : c64[8, 4] in $y
%v = aten._neg_view(%y) : c64[8, 4] in $y
%w = aten.angle(%v) : f32[8, 4] in $w
return %w""")
    )
    with mock.patch(SCHEDULED, side_effect=NotImplementedError("no such loop\nand more")):
        done = compile_regions(graph)
    assert done.graph == graph
    assert not done.calls
    reasons = {why.reason for _, why in done.excluded}
    assert "torch's compiler fails at the run of ops that it is in: no such loop" in reasons


def test_what_waits_for_an_event_stays_behind_it() -> None:
    graph = parse("""model "m" { format = 2 }

device @gpu0 "a100"
stream comm @gpu0
param %w : f32[8] in $w

%a = aten.relu(%w) : f32[8] in $a
%r = sync.record() : u8[] @cpu in $r
sync.wait(%r) on comm
aten.mul_(%a!, 2.0) on comm
%s = sync.record() : u8[] @cpu in $s on comm
%b = aten.sigmoid(%w) : f32[8] in $b
%c = aten.neg(%b) : f32[8] in $c
sync.wait(%s)
%d = aten.exp(%a) : f32[8] in $d
%e = aten.add(%d, %c) : f32[8] in $e
return %e""")
    done = made(graph)
    names = [op.name for op in done.ops]
    wait = len(names) - 1 - names[::-1].index("sync.wait")
    assert [i < wait for i, name in enumerate(names) if name == CALL] == [True, False]


def test_the_gradient_of_a_loss_over_classes_joins_the_gradient_of_log_softmax() -> None:
    options = "weight = none, reduction = 1, ignore_index = -100"
    graph = parse(
        HEAD.format(f"""input %x : f32[8, 50] in $x
input %k : i64[8] in $k
input %o : f32[] in $o

%s = aten._log_softmax(%x, dim = 1, half_to_float = false) : f32[8, 50] in $s
%l, %n = aten.nll_loss_forward(%s, %k, {options}) : f32[] in $l, f32[] in $n
%g = aten.nll_loss_backward(%o, %s, %k, {options}, total_weight = %n) : f32[8, 50] in $g
%d = aten._log_softmax_backward_data(%g, %s, dim = 1, input_dtype = f32) : f32[8, 50] in $d
return %l, %d""")
    )
    compiled = compile_regions(graph).graph
    shared = [names for names in kernels(compiled) if "nll_loss_backward" in names]
    assert len(shared) == 1
    assert "_log_softmax_backward_data" in shared[0]


def test_a_cast_that_does_nothing_reads_no_result_of_a_kernel() -> None:
    graph = parse(
        HEAD.format("""input %x : f32[8] in $x

%a = aten.exp(%x) : f32[8] in $a
aten.to(%a, dtype = f32)
%b = aten.sin(%a) : f32[8] in $b
return %b""")
    )
    compiled = compile_regions(graph).graph
    (kernel,) = (op for op in compiled.walk() if op.name == KERNEL)
    assert [t.name for t in kernel.outputs] == ["b"]
    assert verify(compiled) == []
