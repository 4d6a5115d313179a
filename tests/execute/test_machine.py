"""Executing a graph: memory, views, lists, random ops, and what cannot be executed."""

from __future__ import annotations

import pytest
import torch

from irgraph.execute import execute
from irgraph.ir.graph import Graph
from irgraph.text import IrgraphError
from tests.language.models import model

X = "input %x : f32[4, 6] in $x\n"


def failure(graph: Graph, **options: object) -> str:
    """Return the message of the error that an execution must end with."""
    with pytest.raises(IrgraphError) as caught:
        execute(graph, **options)  # type: ignore[arg-type]
    return str(caught.value)


def test_a_write_through_a_view_shows_in_what_it_views() -> None:
    text = "%v = aten.select(%x, dim = 0, index = 1) : f32[6] in $x+24\naten.zero_(%v!)\n"
    left = execute(model(X + text), {"x": torch.ones(4, 6)})
    assert left["x"].sum(1).tolist() == [6, 0, 6, 6]


def test_declared_views_of_one_buffer_share_it() -> None:
    text = X + "input %row : f32[6] in $x+24\naten.fill_(%row!, value = 2)\n"
    assert execute(model(text), {"x": torch.ones(4, 6)})["x"][1].tolist() == [2.0] * 6


def test_a_copy_to_the_device_is_a_copy() -> None:
    text = (
        "input %h : f32[4] @cpu in $h\n"
        "%y = aten.to(%h, dtype = f32, device = @gpu0) : f32[4] in $y\naten.zero_(%y!)\n"
    )
    left = execute(model(text), {"h": torch.ones(4)})
    assert (left["h"].sum(), left["y"].sum()) == (4, 0)


def test_a_view_that_torch_copies_here_stays_a_view() -> None:
    text = (
        X + "%y = aten.contiguous(%x) : f32[4, 6] in $x\naten.zero_(%y!)\n"
        "%n = aten.reshape(%x, shape = [24]) : f32[24] in $x\naten.add_(%n!, other = 3)\n"
    )
    assert execute(model(text))["x"].unique().tolist() == [3.0]


def test_a_view_that_is_none_is_told() -> None:
    text = X + "%y = aten.mul(%x, other = 2) : f32[4, 6] in $x\n"
    assert failure(model(text)).startswith(
        "m.ir:4:1: error: %y is not what lies in $x, where the model puts it"
    )


def test_results_get_the_layout_that_the_model_says() -> None:
    text = X + "%y = aten.neg(%x) : f32[4, 6; 1, 4] in $y\n"
    left = execute(model(text))
    assert left["y"].stride() == (1, 4)
    assert torch.equal(left["y"], -left["x"])


def test_lists_are_taken_and_given() -> None:
    text = (
        X + "[%a, %b] = aten.split(%x, split_size = 2) :"
        " [f32[2, 6] in $x, f32[2, 6] in $x+48]\n"
        "aten._foreach_add_([%a!, %b!], scalars = [1, 2])\n"
        "%c = aten.cat([%b, %a]) : f32[4, 6] in $c\n"
    )
    left = execute(model(text), {"x": torch.zeros(4, 6)})
    assert left["c"][:, 0].tolist() == [2, 2, 1, 1]


def test_results_that_are_not_there_are_passed_over() -> None:
    text = (
        "input %g : f32[1, 2, 3, 3] in $g\ninput %i : f32[1, 2, 3, 3] in $i\n"
        "param %w : f32[2, 2, 1, 1] in $w\n"
        "_, %gw, _ = aten.convolution_backward(%g, %i, %w, bias_sizes = [2], stride = [1, 1],"
        " padding = [0, 0], dilation = [1, 1], transposed = false, output_padding = [0, 0],"
        " groups = 1, output_mask = [false, true, false]) : none, f32[2, 2, 1, 1] in $gw, none\n"
    )
    left = execute(model(text))
    assert left["gw"].shape == (2, 2, 1, 1)


def test_literals_become_types_layouts_and_devices() -> None:
    text = (
        '%e = aten.full(size = [2], fill_value = 1.5, dtype = f16, layout = "strided",'
        " device = @gpu0, pin_memory = true) : f16[2] in $e\n"
        "%l = aten._to_copy(%e, dtype = i64) : i64[2] in $l\n"
    )
    assert execute(model(text))["l"].tolist() == [1, 1]


DROP = (
    "%y, %k = aten.native_dropout(%x, p = 0.5, train = true) : f32[4, 6] in $y, bool[4, 6] in $k\n"
)


def test_random_ops_draw_the_same_wherever_they_stand() -> None:
    first = "%a = aten.rand_like(%x) : f32[4, 6] in $a\n"
    one, two = (execute(model(X + text)) for text in (first + DROP, DROP + first))
    assert torch.equal(one["y"], two["y"])
    assert torch.equal(one["a"], two["a"])
    assert not torch.equal(one["y"], execute(model(X + DROP), seed=1)["y"])


def test_executing_leaves_torch_as_it_was() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    threads = torch.get_num_threads()
    execute(model(X + DROP))
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads


def test_stream_order_is_launch_order() -> None:
    text = (
        X + "%e = sync.record() : u8[] @cpu in $e\n%y = aten.neg(%x) : f32[4, 6] in $y\n"
        "sync.wait(%e)\nsync.stream()\n"
    )
    left = execute(model(text))
    assert torch.equal(left["y"], -left["x"])


def test_a_sum_over_one_process_changes_nothing() -> None:
    left = execute(model(X + "c10d.allreduce_([%x!])\n"), {"x": torch.ones(4, 6)})
    assert left["x"].unique().tolist() == [1.0]


def test_dimensions_get_other_sizes() -> None:
    graph = model("input %x : f32[B] in $x\n%y = aten.neg(%x) : f32[B] in $y\n")
    assert execute(graph, dims={"B": 3})["y"].shape == (3,)


def test_ops_that_cannot_be_executed_are_all_named() -> None:
    text = (
        X + "%a = lib.f(%x) : f32[4, 6] in $a\n%b = lib.f(%x) : f32[4, 6] in $b\n"
        "%c = aten.cudnn_grid_sampler(%x, %x) : f32[4, 6] in $c\n"
    )
    assert failure(model(text)).splitlines() == [
        "m.ir: error: 3 ops are not executable",
        "m.ir:4:1: note: lib.f (2): no known schema takes these operands",
        "m.ir:6:1: note: aten.cudnn_grid_sampler (1): it has no CPU kernel",
    ]


def test_an_op_that_torch_lacks_is_named() -> None:
    text = "input %x : f32[4] in $x\n%y = my.op(%x) : f32[4] in $y\n"
    message = failure(model(text, ["my::op(Tensor x) -> Tensor"]))
    assert message.endswith(f"my.op (1): torch {torch.__version__} has no such operator")


def test_a_size_that_depends_on_values_is_told() -> None:
    text = X + "%n = aten.nonzero(%x) : i64[3, 2] in $n\n"
    assert failure(model(text), inputs={"x": torch.ones(4, 6)}).splitlines() == [
        "m.ir:4:1: error: aten.nonzero gave i64[24, 2] for %n, which the model says is i64[3, 2]",
        "hint: where a size depends on values, a step cannot be executed on other values",
    ]


def test_what_torch_refuses_is_told_with_its_place() -> None:
    text = X + "%y = aten.mm(%x, %x) : f32[4, 4] in $y\n"
    assert failure(model(text)).startswith("m.ir:4:1: error: aten.mm cannot be executed: mat1 and")


def test_too_large_a_model_is_refused_before_it_runs() -> None:
    text = "input %x : f32[4096, 1048576] in $x\n"
    assert failure(model(text)).splitlines() == [
        "m.ir: error: executing this model takes 16 GiB, more than the limit of 2 GiB;"
        " its largest tensor is %x, 4096x1048576",
        "hint: give smaller sizes (--dim), shorter tables (--rows) or another --limit",
    ]


def test_an_input_of_an_unknown_name_is_told() -> None:
    message = failure(model(X), inputs={"xx": torch.ones(4, 6)})
    assert message.startswith("error: an input is given for %xx, which the model lacks")


def test_an_input_of_another_size_is_told() -> None:
    message = failure(model(X), inputs={"x": torch.ones(2)})
    assert message == "error: the input given for %x is [2], not [4, 6]"


def test_an_unknown_dimension_is_told() -> None:
    assert failure(model(X), dims={"b": 3}).splitlines() == [
        "error: the model has no dimension 'b'",
        "hint: its dimensions: B",
    ]


def test_a_dimension_has_a_size() -> None:
    message = "error: the dimension B must be a whole number of at least 1, not 0"
    assert failure(model(X), dims={"B": 0}) == message


def test_an_autograd_node_that_shows_nothing_of_what_it_made_is_named() -> None:
    text = X + "%y = autograd.CustomBackward(%x) : f32[2] in $y\n"
    message = failure(model(text))
    assert message.endswith("autograd.CustomBackward (1): the ops that it called are unknown")


def test_a_norm_by_fixed_statistics_keeps_nothing_on_the_cpu() -> None:
    text = (
        "input %x : f32[4, 6] in $x\nstate %m : f32[6] in $m\nstate %v : f32[6] in $v\n"
        "%y, %a, %b = aten.native_batch_norm(%x, none, none, %m, %v, training = false, "
        "momentum = 0.1, eps = 1e-05) : f32[4, 6] in $y, f32[6] in $a, f32[6] in $b\n"
    )
    given = {"x": torch.ones(4, 6), "m": torch.ones(6), "v": torch.ones(6)}
    assert execute(model(text), given)["y"].abs().max() < 1e-5


def test_a_backward_that_wants_statistics_of_such_a_norm_is_refused() -> None:
    text = (
        "input %x : f32[4, 6] in $x\nstate %m : f32[6] in $m\nstate %v : f32[6] in $v\n"
        "%y, %a, %b = aten.native_batch_norm(%x, none, none, %m, %v, training = false, "
        "momentum = 0.1, eps = 1e-05) : f32[4, 6] in $y, f32[6] in $a, f32[6] in $b\n"
        "%g, _, _ = aten.native_batch_norm_backward(%y, %x, none, %m, %v, %a, %b, "
        "train = true, eps = 1e-05, output_mask = [true, false, false]) "
        ": f32[4, 6] in $g, none, none\n"
    )
    said = failure(model(text))
    assert "reads %a, statistics of a norm that made none" in said


def test_integers_are_counted_as_on_a_device() -> None:
    text = (
        "input %n : i32[6] in $n\n%h = aten.histc(%n, bins = 3, min = 0, max = 2) : i32[3] in $h\n"
    )
    given = {"n": torch.tensor([0, 1, 1, 2, 2, 2], dtype=torch.int32)}
    assert execute(model(text), given)["h"].tolist() == [1, 2, 3]
