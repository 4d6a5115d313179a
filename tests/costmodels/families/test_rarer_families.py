"""Pools, sorts, recurrent layers, scans, splits, list updates, grouped convolutions, norms."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from costmodels.families import rules
from costmodels.formulas.machine import SMALL
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor
from tests.costmodels.families.helpers import call, kernels, machine, tensor, total
from tests.costmodels.families.worked import walked

PEAK = 816.953e3
"""Bytes a microsecond of V100's memory."""


def _stream(nbytes: float) -> float:
    return nbytes / PEAK + SMALL


def test_pooling_moves_what_it_reads_and_writes() -> None:
    out = (tensor("y", 8, 64, 56, 56), tensor("i", 8, 64, 56, 56, dtype="i64"))
    op = Op("aten.max_pool2d_with_indices", (tensor("x", 8, 64, 112, 112),), out)
    assert total(kernels(op, machine())) == pytest.approx(
        _stream(8 * 64 * (4 * 112 * 112 + 12 * 56 * 56))
    )


def test_a_pools_gradient_does_not_read_the_pooled_tensor() -> None:
    operands = (tensor("g", 8, 64, 56, 56), tensor("x", 8, 64, 112, 112))
    op = Op("aten.avg_pool2d_backward", operands, (tensor("d", 8, 64, 112, 112),))
    moved = 8 * 64 * 4 * (56 * 56 + 112 * 112)
    assert total(kernels(op, machine())) == pytest.approx(_stream(moved))


def test_the_gradient_of_a_maximum_is_bound_by_its_search() -> None:
    operands = (tensor("g", 32, 64, 56, 56), tensor("x", 32, 64, 112, 112))
    op = Op("aten.max_pool2d_with_indices_backward", operands, (tensor("d", 32, 64, 112, 112),))
    # traced on another V100 at a higher clock: 780 us
    assert total(kernels(op, machine())) == pytest.approx(780, rel=0.5)


def test_a_convolutions_gradient_is_never_free() -> None:
    """Recordings without results do not say which gradients were asked for: both are taken."""
    data, weight = tensor("x", 8, 64, 56, 56), tensor("w", 64, 64, 3, 3)
    gradient = tensor("g", 8, 64, 56, 56)
    new = Op("aten.convolution_backward", (gradient, data, weight), (data, weight))
    old = Op("aten.cudnn_convolution_backward", (data, gradient, weight))
    assert total(kernels(old, machine())) == pytest.approx(total(kernels(new, machine())))


def test_a_conversion_without_results_is_left_to_what_it_called() -> None:
    child = Op("aten.copy_", (tensor("y", 1024), tensor("x", 1024)), written=frozenset({"y"}))
    assert rules()["aten.to"](Op("aten.to", (tensor("x", 1024),), body=(child,)), machine()) is None


@pytest.mark.parametrize(("rows", "measured"), [(32, 3), (128, 4), (512, 12)])
def test_one_block_picks_the_class_of_every_row(rows: int, measured: float) -> None:
    operands = (tensor("x", rows, 10), tensor("y", rows, dtype="i64"))
    op = Op("aten.nll_loss_forward", operands, (tensor("l"), tensor("w")))
    assert total(kernels(op, machine())) == pytest.approx(measured, abs=1.5)


def test_many_rows_are_picked_by_at_most_a_thousand_threads() -> None:
    operands = (tensor("x", 16_384, 10), tensor("y", 16_384, dtype="i64"))
    (found,) = kernels(Op("aten.nll_loss_forward", operands, (tensor("l"),)), machine())
    assert found.time == pytest.approx(SMALL + 16 * 0.6)


def test_means_over_few_pixels_leave_lanes_idle() -> None:
    few = call("aten.mean", tensor("x", 32, 2048, 7, 7), out=(32, 2048))
    many = call("aten.mean", tensor("x", 32, 128, 28, 28), out=(32, 128))
    assert total(kernels(few, machine())) > 1.3 * total(kernels(many, machine()))


def test_sums_of_few_planes_move_what_they_read_and_write() -> None:
    planes = tensor("x", 64, 2, 256, 16, 16)
    pairs = call("aten.sum", planes, out=(64, 256, 16, 16), dim=(1,))
    moved = 4 * 3 * 64 * 256 * 16 * 16  # each plane read, and their sum written
    assert total(kernels(pairs, machine())) == pytest.approx(machine().stream(moved), rel=2.0)


def test_long_slices_are_sorted_in_passes_over_the_key() -> None:
    short = call("aten.sort", tensor("x", 1000, 1000), out=(1000, 1000))
    long = call("aten.sort", tensor("x", 1, 1_000_000), out=(1, 1_000_000))
    assert total(kernels(long, machine())) > total(kernels(short, machine()))
    assert "4 passes" in kernels(long, machine())[1].name


def test_a_16_bit_key_takes_half_the_passes() -> None:
    op = call("aten.sort", tensor("x", 1_000_000, dtype="f16"), out=(1_000_000,))
    assert "2 passes" in kernels(op, machine())[1].name


def test_the_largest_are_selected_and_then_sorted() -> None:
    sorted_ = call("aten.topk", tensor("x", 512, 4096), out=(512, 800), k=800, dim=-1)
    plain = replace(sorted_, attributes={"k": 800, "dim": -1, "sorted": False})
    assert [len(kernels(op, machine())) for op in (sorted_, plain)] == [2, 1]


def test_the_host_waits_for_the_number_of_places() -> None:
    op = call("aten.nonzero", tensor("m", 4096, dtype="bool"), out=(100, 1))
    assert [k.blocking for k in kernels(op, machine())] == [False, True, False]


def test_a_mask_as_an_index_is_listed_first() -> None:
    data, mask = tensor("x", 4096, 64), tensor("m", 4096, dtype="bool")
    op = call("aten.index", data, (mask,), out=(1000, 64))
    found = kernels(op, machine())
    assert len(found) == 4 and found[1].blocking and found[3].family == "index"


def _rnn(name: str, steps: int) -> Op:
    weights = tuple(
        tensor(f"w{i}", *shape)
        for i, shape in enumerate([(1024, 128), (1024, 256), (1024,), (1024,)] * 2)
    )
    hidden = {"hx": tensor("h", 2, 64, 256)}
    return Op(name, (tensor("x", steps, 64, 128), weights), (tensor("y", steps, 64, 256),), hidden)


def test_a_recurrent_layer_takes_its_steps_one_after_the_other() -> None:
    (short,), (long,) = (kernels(_rnn("aten._cudnn_rnn", n), machine()) for n in (10, 40))
    assert 3.5 < long.time / short.time < 4.1
    assert long.name == "cudnn_rnn 2 layers x 40 steps" and long.outside


def test_a_recurrent_gradient_takes_twice_the_products() -> None:
    forward, backward = (
        total(kernels(_rnn(name, 20), machine()))
        for name in ("aten._cudnn_rnn", "aten._cudnn_rnn_backward")
    )
    assert backward == pytest.approx(2 * forward)


def test_running_sums_write_what_they_read() -> None:
    op = call("aten.cumsum", tensor("x", 2048, 1024), out=(2048, 1024), dim=0)
    assert total(kernels(op, machine())) == pytest.approx(_stream(2 * 2048 * 1024 * 4))


def test_parts_that_are_copied_take_a_kernel_each() -> None:
    parts = tuple(tensor(f"y{i}", 2048, 64) for i in range(3))
    op = Op("aten.split_with_sizes_copy", (tensor("x", 2048, 192),), (parts,))
    assert len(kernels(op, machine())) == 3


def test_many_parts_are_joined_in_several_launches() -> None:
    parts = tuple(tensor(f"x{i}", 64, 16) for i in range(129))
    assert len(kernels(call("aten.cat", parts, out=(64, 129 * 16)), machine())) == 2


def test_a_repeat_reads_its_source_once() -> None:
    op = call("aten.repeat", tensor("x", 1024, 64), out=(16 * 1024, 64))
    assert total(kernels(op, machine())) == pytest.approx(_stream(17 * 1024 * 64 * 4), rel=0.5)
    assert total(kernels(op, machine())) < _stream(32 * 1024 * 64 * 4)


def _adam(**attributes: Value) -> Op:
    lists = [tuple(tensor(f"{n}{i}", 1 << 20) for i in range(4)) for n in "pgmv"]
    steps = tuple(tensor(f"s{i}") for i in range(4))
    names = frozenset(t.name for found in lists for t in found)
    return Op("aten._fused_adamw_", (*lists, (), steps), (), attributes, names)


def test_a_fused_adam_reads_four_tensors_and_writes_three() -> None:
    found = kernels(_adam(), machine())
    assert total(found) == pytest.approx(len(found) * walked(7 * 4 * (1 << 22), 4, slower=2.0))


def test_a_fused_adam_that_unscales_writes_gradients_back() -> None:
    found = kernels(_adam(grad_scale=tensor("scale")), machine())
    assert total(found) == pytest.approx(len(found) * walked(8 * 4 * (1 << 22), 4, slower=2.0))


def test_norms_of_a_list_read_every_tensor() -> None:
    tensors = tuple(tensor(f"g{i}", 1 << 20) for i in range(4))
    norms = tuple(tensor(f"n{i}") for i in range(4))
    found = kernels(Op("aten._foreach_norm", (tensors,), (norms,)), machine())
    assert found[-1].name == "join partial norms"
    assert total(found) == pytest.approx(walked(4 * (4 << 20), 1) + SMALL)


def test_unscaling_gradients_reads_and_writes_them() -> None:
    tensors = tuple(tensor(f"g{i}", 1 << 20) for i in range(4))
    operands = (tensors, tensor("inf"), tensor("scale"))
    op = Op("aten._amp_foreach_non_finite_check_and_unscale_", operands)
    assert total(kernels(op, machine())) == pytest.approx(walked(8 * (4 << 20), 1))


def _conv(channels: int, groups: int, **attributes: Value) -> Op:
    data, weight = tensor("x", 8, channels, 56, 56), tensor("w", channels, channels // groups, 3, 3)
    return call("aten.convolution", data, weight, out=(8, channels, 56, 56), **attributes)


def test_a_depthwise_convolution_is_bound_by_memory_in_cudnn_and_not_in_torch() -> None:
    own, whole = (total(kernels(_conv(256, groups), machine())) for groups in (256, 1))
    op = _conv(256, 256)
    operands, results = (
        tuple(replace(t, dtype="f16") for t in part) for part in (op.inputs, op.outputs)
    )
    half = replace(op, operands=operands, results=results)
    alone, moved = total(kernels(half, machine())), _stream(2 * 8 * 256 * 56 * 56 * 2)
    assert 2.9 * moved <= alone < 4 * moved < own < whole


def test_groups_divide_the_work() -> None:
    whole, four = (total(kernels(_conv(256, groups), machine())) for groups in (1, 4))
    assert 2.0 < whole / four < 4.5


def test_a_transposed_convolution_costs_what_the_gradient_of_its_forward_one_does() -> None:
    small, large = tensor("x", 8, 128, 16, 16), tensor("y", 8, 64, 32, 32)
    weight = tensor("w", 128, 64, 4, 4)
    up = Op("aten.convolution", (small, weight), (large,), {"transposed": True})
    down = Op("aten.convolution_backward", (small, large, weight), (large, None, None))
    assert total(kernels(up, machine())) == pytest.approx(total(kernels(down, machine())))


def test_a_one_dimensional_convolution_is_flagged() -> None:
    op = call("aten.convolution", tensor("x", 8, 64, 256), tensor("w", 64, 64, 3), out=(8, 64, 256))
    assert kernels(op, machine())[0].outside


def test_a_layer_norms_gradient_has_a_kernel_for_its_weight() -> None:
    def gradient(*results: Tensor | None) -> int:
        operands = (tensor("g", 2048, 512), tensor("x", 2048, 512))
        return len(kernels(Op("aten.native_layer_norm_backward", operands, results), machine()))

    data, weight = tensor("dx", 2048, 512), tensor("dw", 512)
    assert gradient(data, weight, weight) == 2
    assert gradient(data, None, None) == 1


@pytest.mark.parametrize("name", ["native_group_norm", "native_group_norm_backward"])
def test_a_group_norm_takes_three_kernels(name: str) -> None:
    """Moments or sums, factors, the result; a weight makes factors of the moments, too."""
    backward = name.endswith("backward")
    few = tuple(tensor(n, 8, 32) for n in ("m", "r")) if backward else ()
    data, weight = tensor("x", 8, 64, 32, 32), tensor("w", 64)
    counts = [
        len(kernels(call(f"aten.{name}", data, *given, out=data.shape), machine()))
        for given in ((*few, *((data,) if backward else ())), (data, *few, weight))
    ]
    assert counts == ([3, 5] if backward else [2, 3])


@pytest.mark.parametrize("name", ["scatter_add", "scatter_reduce", "index_add", "index_copy"])
def test_scatters_find_their_places_among_the_attributes(name: str) -> None:
    """Their schemas name the axis before the places, so that these are no operands."""
    places = {"index": tensor("i", 4096, 64, dtype="i64"), "src": tensor("v", 4096, 64)}
    op = call(f"aten.{name}", tensor("x", 1000, 64), out=(1000, 64), dim=0, **places)
    found = kernels(op, machine())
    assert [k.family for k in found] == ["copy", "index"]
    assert found[1].time > _stream(4096 * 64 * 12)
