"""Times of gathers, sums, norms, sorts and updates, worked out by hand for a V100."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from msgspec.structs import replace

from costmodels.families.optimizer import list_update_launches
from costmodels.formulas.machine import Machine, ModelEstimate
from costmodels.formulas.products import product_kernels
from costmodels.formulas.tiles import Product
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor
from tests.costmodels.families.helpers import OLD, call, in_place, kernels, machine, tensor, total
from tests.costmodels.families.worked import (
    FLOOR,
    cache,
    cycles,
    dram,
    near,
    times,
    unknown,
    walked,
    width,
    without,
)

N = 2048 * 1024

# places


@pytest.mark.parametrize(("count", "traced"), [(718_848, 17.4), (73_728, 8.2)])
def test_a_gather_by_index_takes_what_was_traced(count: int, traced: float) -> None:
    op = call("aten.index", tensor("x", 8, 1024), (tensor("i", 4, dtype="i64"),), out=(count,))
    assert times(op) == [pytest.approx(traced, rel=0.02)]
    assert width(kernels(op, machine())[0]) == 0.2
    assert unknown(replace(op, results=()))


def test_a_gather_of_wide_elements_is_bound_by_memory() -> None:
    result = tensor("y", 10 * N, dtype="f64")
    op = Op("aten.index", (tensor("x", 64), (tensor("i", 4, dtype="i64"),)), (result,))
    assert times(op) == near(dram(2 * 8 * 10 * N) + FLOOR)


def test_an_index_on_the_host_is_copied_and_waited_for_even_if_pinned() -> None:
    index = tensor("i", 36, dtype="i64", device="cpu")
    op = call("aten.index", tensor("z", 2048, 81), (None, index), out=(2048, 36))
    copy, gather = kernels(op, replace(machine(), pinned=True))
    assert copy.blocking and copy.name.endswith("host to device 36")
    assert gather.family == "index"
    assert len(times(replace(op, operands=op.operands[:1]))) == 1


def put(target: Tensor, *index: Tensor | None, values: Tensor, add: bool = True) -> Op:
    return Op("aten.index_put_", (target, index, values), (), {"accumulate": add}, frozenset("z"))


def test_values_at_places_are_sorted_and_summed() -> None:
    """Six kernels on indices, the values in their order, places, a sort by 64 bits, the sums."""
    pairs = [tensor(n, 351, dtype="i64") for n in "ij"]
    op = put(tensor("z", 2048, 27, 27), None, *pairs, values=tensor("v", 2048, 351))
    tiny = dram(16 * 351) + FLOOR
    copied = max(dram(2 * 4 * 2048 * 351) / 0.6, cycles(2048 * 351, 1.4)) + FLOOR
    *before, sums = times(op)
    assert before == near(*[tiny] * 6, copied, tiny, 12.0)
    # four indices a block, sixteen blocks a multiprocessor at once, 2.25 us a wave
    assert sums == pytest.approx(2048 * 88 / (80 * 16) * 2.25 + FLOOR)
    assert sums == pytest.approx(319, rel=0.01)  # traced
    found = kernels(op, machine())
    assert [width(k) for k in found[-4:]] == [0.15, 0.15, 0.3, 0.3]


def test_a_block_sums_four_places_of_128_elements() -> None:
    """torch, Indexing.cu; 2,048 threads of a multiprocessor are sixteen such blocks."""
    places, one = tensor("i", 9, dtype="i64"), tensor("i", 1, dtype="i64")
    op = put(tensor("z", 4096, 50, 3), None, places, values=tensor("v", 4096, 9, 3))
    assert times(op)[-1] == pytest.approx(4096 * 3 / (80 * 2048 / 128) * 2.25 + FLOOR)
    wide = put(tensor("z", 40960, 50, 129), None, one, values=tensor("v", 40960, 1, 129))
    assert times(wide)[-1] == pytest.approx(40960 * 2 / (80 * 2048 / 128) * 2.25 + FLOOR)
    narrow = put(tensor("z", 40960, 50, 128), None, one, values=tensor("v", 40960, 1, 128))
    assert times(narrow)[-1] < 0.7 * times(wide)[-1]


def test_sums_of_long_slices_move_memory() -> None:
    places = tensor("i", 100_000, dtype="i64")
    op = put(tensor("z", 10_000, 128), places, values=tensor("v", 100_000, 128))
    rows = 4 * 100_000 * 128
    assert times(op)[-1] == pytest.approx(dram(rows) + dram(2 * rows) / 0.8 + 2 * FLOOR)
    # 64-bit keys in eight passes, each reading twice and writing once
    assert times(op)[-2] == pytest.approx(8 * (dram(3 * 16 * 100_000) + 2 * FLOOR))


def test_values_written_at_places_are_gathered_the_other_way_round() -> None:
    places = tensor("i", 351, dtype="i64")
    op = put(tensor("z", 2048, 351), None, places, values=tensor("v", 2048, 351), add=False)
    assert times(op) == near(4.5 + cycles(2048 * 351, 0.67) + FLOOR)
    assert unknown(replace(op, operands=op.operands[:2]))
    assert unknown(replace(op, operands=(op.operands[0], (), op.operands[2])))
    assert unknown(replace(op, operands=(*op.operands[:2], 1.0)))


def test_rows_that_are_selected_are_read_and_written() -> None:
    rows = tensor("i", 4096, dtype="i64")
    op = call("aten.index_select", tensor("x", 10**6, 64), rows, out=(4096, 64))
    assert times(op) == near(dram(2 * 4 * 4096 * 64 + 8 * 4096) + FLOOR)
    assert width(kernels(op, machine())[0]) == 0.3
    assert unknown(replace(op, results=()))


@pytest.mark.parametrize(("rows", "changed"), [(10**6, 4096 * 64), (100, 100 * 64)])
def test_a_scatter_reads_values_and_places_and_changes_their_targets(
    rows: int, changed: int
) -> None:
    values, places = tensor("v", 4096, 64), tensor("i", 4096, dtype="i64")
    op = in_place("aten.index_add_", tensor("x", rows, 64), dim=0, index=places, source=values)
    expected = dram(4 * values.numel + 8 * 4096) + dram(2 * 4 * changed) / 0.8 + FLOOR
    assert times(op) == near(expected)
    assert kernels(op, machine())[0].name == "index_add_ 4096x64"
    copy = call("aten.index_add", *op.operands, out=(rows, 64), dim=0, index=places, source=values)
    assert times(copy) == near(dram(2 * 4 * rows * 64) / 0.8 + FLOOR, expected)
    assert unknown(replace(op, attributes={}))


def test_the_gradient_of_a_slice_is_zeros_and_a_copy_of_the_part() -> None:
    op = call("aten.slice_backward", tensor("g", 2048, 64), out=(2048, 1024))
    assert times(op) == near(dram(4 * N) + FLOOR, dram(2 * 4 * 2048 * 64) / 0.8 + FLOOR)
    assert all(unknown(other) for other in without(op))


def test_a_part_that_replaces_another_is_copied_after_the_whole() -> None:
    whole, part = tensor("x", 2048, 1024), tensor("p", 2048, 64)
    op = call("aten.slice_scatter", whole, part, out=(2048, 1024))
    assert times(op) == near(*(dram(2 * 4 * t.numel) / 0.8 + FLOOR for t in (whole, part)))
    assert unknown(replace(op, results=())) and unknown(replace(op, operands=(whole,)))


# losses


def test_a_loss_is_three_tensors_and_their_mean() -> None:
    pair = (tensor("p", N), tensor("t", N))
    mean = times(call("aten.mean", tensor("p", N), out=()))
    op = call("aten.mse_loss", *pair, out=())
    assert times(op) == near(dram(3 * 4 * N) + FLOOR, *mean)
    every = call("aten.mse_loss", *pair, out=(N,), reduction=0)
    assert times(every) == near(dram(3 * 4 * N) + FLOOR)
    one = call("aten.mse_loss", tensor("p"), tensor("t"), out=())
    assert len(times(one)) == 2
    bce = call("aten.binary_cross_entropy", *pair, out=())
    assert times(bce, software=OLD) == near(*times(op), 1.5)
    assert times(bce) == times(op, software=OLD) == near(*times(op))
    copy = kernels(bce, machine(software=OLD))[-1]
    assert copy.launch == "memcpy" and width(copy) == 0.0
    assert all(unknown(other) for other in without(op))


def test_the_gradient_of_a_loss_reads_three_tensors_and_writes_one() -> None:
    pair = (tensor("p", N), tensor("t", N))
    mse = call("aten.mse_loss_backward", tensor("g", N), *pair, out=(N,))
    whole = dram(4 * 4 * N) + FLOOR
    assert times(mse) == near(whole)
    assert times(mse, software=OLD) == near(dram(4 * N) + FLOOR, whole)
    bce = replace(mse, name="aten.binary_cross_entropy_backward")
    assert times(bce) == times(bce, software=OLD) == near(whole, dram(2 * 4 * N) + FLOOR)
    assert unknown(replace(mse, results=()))


def test_a_cross_entropy_of_logits_takes_four_kernels_and_the_mean() -> None:
    name = "aten.binary_cross_entropy_with_logits"
    op = call(name, tensor("p", N), tensor("t", N), out=())
    mean = times(call("aten.mean", tensor("p", N), out=()))
    assert times(op) == near(*[dram(3 * 4 * N) + FLOOR] * 4, *mean)
    assert unknown(replace(op, operands=())) and unknown(replace(op, body=(op,)))
    assert [k.name.split()[1] for k in kernels(op, machine())[:4]] == ["1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("rows", "walked"),
    # rows a thread: a power of two nearest a sixteenth of the rows, from 32 to 1024 threads
    [(1, 1), (32, 1), (512, 16), (720, 23), (736, 12), (2048, 16), (16_384, 16), (65_536, 64)],
)
def test_one_block_walks_all_rows_of_a_class_loss(rows: int, walked: int) -> None:
    operands = (tensor("x", rows, 10), tensor("y", rows, dtype="i64"))
    op = Op("aten.nll_loss_forward", operands, (tensor("l"), tensor("w")))
    assert times(op) == near(FLOOR + 0.6 * walked)
    assert width(kernels(op, machine())[0]) == 0.5
    assert unknown(replace(op, operands=op.operands[:1]))


def test_other_class_losses_stream() -> None:
    classes = tensor("y", 64, 128, 128, dtype="i64")
    op = call("aten.nll_loss2d_forward", tensor("x", 64, 10, 128, 128), classes, out=())
    assert times(op) == near(dram(2 * classes.nbytes) + FLOOR)
    back = call("aten.nll_loss_backward", tensor("g"), tensor("x", 2048, 1024), out=(2048, 1024))
    assert times(back) == near(dram(4 * N) + FLOOR, FLOOR + 0.6 * 16)  # cleared, then picked


# normalisation


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        # statistics read the data once more; the gradient reads data and gradient twice
        ("native_batch_norm", (3,)),
        ("native_batch_norm_backward", (5,)),
        ("cudnn_batch_norm_backward", (5,)),
    ],
)
def test_a_norm_moves_its_data_so_many_times(name: str, passes: tuple[int, ...]) -> None:
    shape = (32, 128, 16, 32)
    op = call(f"aten.{name}", tensor("g", *shape), out=shape)
    assert times(op) == near(*(dram(4 * N * count) + FLOOR for count in passes))
    assert {width(k) for k in kernels(op, machine())} == {0.4}
    assert unknown(Op(op.name, (), ()))


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        ("native_layer_norm", (2,)),
        ("native_layer_norm_backward", (3,)),
        ("native_batch_norm", (3,)),
        ("native_batch_norm_backward", (5,)),
        ("native_group_norm", (1, 0, 2)),
        ("native_group_norm_backward", (2, 0, 3)),
    ],
)
def test_the_papers_norms_are_bytes_alone(name: str, passes: tuple[int, ...]) -> None:
    op = call(f"aten.{name}", tensor("g", 2048, 1024), out=(2048, 1024))
    found = times(op, mode="paper")
    assert found == near(*(dram(4 * N * count) + (0 if count else FLOOR) for count in passes))
    assert unknown(Op(op.name, (), ()))


def test_wide_rows_of_a_norm_take_their_bytes_and_a_start() -> None:
    """A V100's memory is the slower one; the last row's loads follow one another."""
    for name, passes, start, depth in (
        ("native_layer_norm", 2, 2.3, 120),
        ("native_layer_norm_backward", 3, 1.8, 140),
    ):
        op = call(f"aten.{name}", tensor("g", 512, 4096), out=(512, 4096))
        last = 32 * depth / 1297
        assert times(op) == near(dram(4 * N * passes) + start + last)


def test_the_gradient_of_a_norms_weight_reads_data_and_gradient() -> None:
    """In blocks of 32 columns over all rows, where these do not take longer."""
    for shape, expected in (
        ((128, 16384), dram(2 * 4 * N) + FLOOR),
        ((16384, 128), 16384 * 32 / 3.2 / 1297 + FLOOR),
    ):
        op = call("aten.native_layer_norm_backward", tensor("g", *shape), out=shape)
        both = replace(op, results=(*op.results, tensor("w", shape[1])))
        assert times(both)[1:] == near(expected)


def test_kernels_sum_a_norms_gradients_by_32_columns() -> None:
    """Kernels alone, 6,000 rows in f32 on an A100 (pytorch/pytorch pull request 87814).

    Of 256 and 512 columns 39.4 and 53.5 us, after it 30.1 and 59.4: as many rows a block, in blocks
    beside each other. Newer releases part very many rows instead.
    """
    made: dict[tuple[str, int], float] = {}
    for era in ("torch-2.7", "torch-2"):
        for rows in (6000, 200_000):
            shape = (rows, 256)
            grad = call("aten.native_layer_norm_backward", tensor("g", *shape), out=shape)
            op = replace(grad, results=(*grad.results, tensor("w", 256)))
            made[era, rows] = sum(k.time for k in kernels(op, machine("a100", era))[1:])
    assert made["torch-2.7", 6000] == pytest.approx((39.4 + 53.5 + 30.1 + 59.4) / 4, rel=0.1)
    assert made["torch-2", 6000] == made["torch-2.7", 6000]
    assert made["torch-2", 200_000] < made["torch-2.7", 200_000] / 2


def test_given_statistics_take_one_pass() -> None:
    op = call("aten.batch_norm_stats", tensor("x", 64, 32, 1024), tensor("m", 32), out=(32,))
    assert times(op) == near(dram(4 * (N + 64)) + FLOOR)
    assert unknown(Op(op.name, (), ()))


def test_a_sum_and_its_norm_read_two_tensors_and_write_two() -> None:
    pair = (tensor("x", 2048, 1024), tensor("y", 2048, 1024), tensor("w", 1024))
    op = call("irgraph.add_layer_norm", *pair, out=(2048, 1024))
    assert times(op) == near(dram(4 * 4 * N) + FLOOR)
    assert width(kernels(op, machine())[0]) == 0.4
    assert unknown(replace(op, operands=())) and unknown(Op(op.name, (), ()))


@pytest.mark.parametrize(
    ("name", "family"), [("native_layer_norm", "layer_norm"), ("_softmax", "softmax")]
)
@pytest.mark.parametrize(
    ("shape", "rows", "columns"),
    [((8, 256, 1024), 2048, 1024), ((7,), 1, 7), ((8, 1), 8, 1), ((), 1, 1)],
)
def test_a_trained_model_is_asked_about_rows(
    name: str, family: str, shape: tuple[int, ...], rows: int, columns: int
) -> None:
    asked: list[Mapping[str, float | str]] = []

    def model(sizes: Mapping[str, float | str]) -> ModelEstimate:
        asked.append(sizes)
        return ModelEstimate(42.0, 1.0)

    base = machine()
    on = Machine(base.sheet, base.software, learned={family: model})
    (found,) = kernels(call(f"aten.{name}", tensor("x", *shape), out=shape), on)
    assert found.by == "learned"
    assert (asked[0]["rows"], asked[0]["cols"]) == (rows, columns)


def test_softmax_s_gradient_is_a_product_and_one_pass() -> None:
    pair = (tensor("g", 2048, 1024), tensor("y", 2048, 1024))
    op = call("aten._softmax_backward_data", *pair, out=(2048, 1024))
    once = dram(3 * 4 * N) + FLOOR
    assert times(op) == near(once, once + 40 * 32 / 1297)  # a lane holds 32 values of a row
    assert width(kernels(op, machine())[1]) == 0.4  # measured on another card
    assert times(op, mode="paper") == near(dram(3 * 4 * N))
    assert unknown(Op(op.name, (), ()))


# lists of tensors


@pytest.mark.parametrize(("lists", "most"), enumerate((110, 64, 48, 36, 30), start=1))
def test_a_launch_takes_as_many_tensors_as_its_arguments_hold(lists: int, most: int) -> None:
    """torch, MultiTensorApply.cuh: ``depth_to_max_tensors``."""
    assert [len(list_update_launches([1] * count, lists)) for count in (most, most + 1)] == [1, 2]


def test_a_launch_has_at_most_320_blocks_of_65536_elements() -> None:
    """torch, MultiTensorApply.cuh: ``depth_to_max_blocks``, ``kChunkSize``."""
    assert [len(list_update_launches([size], 1)) for size in (320 * 65536, 320 * 65536 + 1)] == [
        1,
        2,
    ]
    assert len(list_update_launches([1] * 60 + [65536 * 261], 1)) == 2


def lists(count: int, elements: int = N, tensors: int = 3) -> list[tuple[Tensor, ...]]:
    return [
        tuple(tensor(f"{'pgmvx'[i]}{k}", elements) for k in range(tensors)) for i in range(count)
    ]


@pytest.mark.parametrize(
    ("name", "operands", "written", "made", "moved"),
    [
        ("_foreach_add_", 2, 1, False, 3),
        ("_foreach_mul", 1, 0, True, 2),
        ("_foreach_zero_", 1, 1, False, 1),
        ("_foreach_addcdiv_", 3, 1, False, 4),
        ("_amp_foreach_non_finite_check_and_unscale_", 1, 1, False, 2),
    ],
)
def test_a_step_over_lists_reads_all_and_writes_one(
    name: str, operands: int, written: int, made: bool, moved: int
) -> None:
    given = lists(operands)
    names = frozenset(t.name for found in given[:written] for t in found)
    results = (tuple(tensor(f"y{k}", N) for k in range(3)),) if made else ()
    op = Op(f"aten.{name}", (*given, 0.5), results, {}, names)
    (found,) = kernels(op, machine())
    time = walked(moved * 3 * 4 * N, operands + made)
    assert found.time == pytest.approx(time) and width(found) == pytest.approx(0.2)
    assert unknown(replace(op, operands=(0.5,)))


def test_a_new_list_is_a_list_to_walk_too() -> None:
    made = tuple(tensor(f"y{k}", 8) for k in range(65))
    op = Op("aten._foreach_neg", (lists(1, 8, 65)[0],), (made,))
    assert len(times(op)) == 2
    assert len(times(Op("aten._foreach_neg_", op.operands, (), {}, frozenset({"p0"})))) == 1


def test_a_list_on_the_host_launches_nothing() -> None:
    host = tuple(tensor(f"h{k}", 8, device="cpu") for k in range(2))
    for name in ("_foreach_neg_", "_foreach_norm"):
        assert times(Op(f"aten.{name}", (host,), ())) == []


@pytest.mark.parametrize("unscaled", [False, True])
def test_a_fused_update_writes_all_but_gradients(unscaled: bool) -> None:
    """Steps are single numbers: they are not counted, however many tensors there are."""
    given = lists(4)
    steps = tuple(tensor(f"s{k}") for k in range(3))
    attributes: dict[str, Value] = {"grad_scale": tensor("scale")} if unscaled else {}
    op = Op("aten._fused_adam_", (*given, (), steps), (), attributes, frozenset({"p0"}))
    moved = (4 + 3 + unscaled) * 3 * 4 * N
    assert times(op) == near(walked(moved, 4, slower=2.0))
    assert unknown(replace(op, operands=given[:1]))
    sgd = Op("aten._fused_sgd_", tuple(lists(2)), (), {}, frozenset({"p0"}))
    assert times(sgd) == near(walked(3 * 3 * 4 * N, 2))
    numbers = Op("aten._fused_sgd_", tuple(lists(2, 1)), (), {}, frozenset({"p0"}))
    assert times(numbers) == near(walked(3 * 3 * 4, 2, 1, slower=1.3))  # no multiple of four
    pairs = Op("aten._fused_adam_", (*lists(4, 4), steps), (), {}, frozenset({"p0"}))
    assert times(pairs) == near(walked(7 * 3 * 4 * 4, 4, 1, slower=2.0))


def test_a_fused_update_walks_at_most_five_lists() -> None:
    op = Op("aten._fused_adam_", tuple(lists(5, 8, 36)), (), {}, frozenset({"p0"}))
    assert len(times(op)) == 2
    six = (*op.operands, tuple(tensor(f"z{k}", 8) for k in range(36)))
    assert len(times(replace(op, operands=six))) == 2
    four = Op("aten._fused_adam_", tuple(lists(4, 8, 36)), (), {}, frozenset({"p0"}))
    assert len(times(four)) == 1


def test_norms_of_a_list_are_joined_by_a_kernel() -> None:
    op = Op("aten._foreach_norm", tuple(lists(1)), (tuple(tensor(f"n{k}") for k in range(3)),))
    assert times(op) == near(walked(3 * 4 * N, 1), FLOOR)
    assert width(kernels(op, machine())[1]) == 0.3
    assert unknown(replace(op, operands=()))
    many = Op("aten._foreach_norm", tuple(lists(1, 8, 110)), ())
    assert len(times(many)) == 2


# images


def test_a_pools_gradient_reads_its_gradient_and_not_the_image() -> None:
    image, pooled = tensor("x", 32, 64, 64, 64), tensor("g", 32, 64, 32, 32)
    op = call("aten.avg_pool2d_backward", pooled, image, out=image.shape)
    assert times(op) == near(dram(4 * (image.numel + pooled.numel)) + FLOOR)
    largest = replace(op, name="aten.max_pool2d_with_indices_backward")
    # 0.25 on RTX 2080 Ti, 0.33 on V100 and 0.28 on A100 were traced
    assert times(largest) == near(2.0, cycles(image.numel, 0.28))  # a fill before it
    assert times(largest, mode="paper") == near(dram(4 * (image.numel + pooled.numel)))
    forward = call("aten.max_pool2d_with_indices", image, out=pooled.shape)
    assert times(forward) == near(dram(4 * (image.numel + pooled.numel)) + FLOOR)
    assert width(kernels(op, machine())[0]) == 0.4
    bilinear = call("aten.upsample_bilinear2d_backward", pooled, image, out=image.shape)
    assert times(bilinear) == near(dram(4 * (2 * image.numel + pooled.numel)) + FLOOR)
    assert unknown(Op(op.name, (), ()))


def test_a_small_gradient_of_a_maximum_takes_a_fill_and_the_launch_floor() -> None:
    op = call("aten.max_pool2d_with_indices_backward", tensor("g", 8), tensor("x", 8), out=(8,))
    assert times(op) == near(2.0, dram(64) + FLOOR)


# recurrent layers


def rnn(name: str = "aten._cudnn_rnn", projected: int = 0) -> Op:
    """Return two layers of 256 over 20 steps of 64 sequences with 128 inputs."""
    shapes = [(1024, 128), (1024, 256), (1024,), (1024,), (1024, 256), (1024, 256)]
    if projected:
        shapes = [(1024, 128), (1024, 64), (64, 256), (1024, 64), (1024, 64), (64, 256)]
    weights = tuple(tensor(f"w{i}", *shape) for i, shape in enumerate(shapes))
    attributes: dict[str, Value] = {"hx": tensor("h", 2, 64, 256)}
    attributes |= {"proj_size": projected} if projected else {}
    return Op(name, (tensor("x", 20, 64, 128), weights), (tensor("y", 20, 64, 256),), attributes)


def product(rows: int, columns: int, depth: int) -> float:
    """Return a linear layer's product beside its launch floor."""
    found = product_kernels(Product(1, rows, columns, depth, "f32", "tn"), machine())
    return total(found) - FLOOR


@pytest.mark.parametrize(
    ("projected", "layers"), [(0, ((128, 256), (256, 256))), (64, ((128, 64), (64, 64)))]
)
def test_layers_take_a_product_for_all_inputs_and_one_a_step(
    projected: int, layers: tuple[tuple[int, int], ...]
) -> None:
    cell = dram(2 * 4 * 64 * 1024) + FLOOR
    expected = sum(
        product(20 * 64, 1024, inputs) + 20 * (product(64, 1024, hidden) + FLOOR + cell)
        for inputs, hidden in layers
    )
    (found,) = kernels(rnn(projected=projected), machine())
    assert found.time == pytest.approx(expected, rel=0.01)
    assert found.name == "cudnn_rnn 2 layers x 20 steps"
    assert width(found) == 0.6
    backward = rnn("aten._cudnn_rnn_backward", projected)
    assert times(backward) == near(2 * found.time)


def test_a_recurrent_layer_without_its_state_is_unknown() -> None:
    op = rnn()
    assert unknown(replace(op, attributes={}))
    assert unknown(replace(op, operands=op.operands[:1]))
    assert unknown(replace(op, operands=((), *op.operands[1:])))


def test_a_fused_cell_moves_gates_and_states_once() -> None:
    gates, state = tensor("g", 2048, 1024), tensor("h", 2048, 256)
    op = call("aten._thnn_fused_lstm_cell", gates, state, out=(2048, 256))
    assert times(op) == near(dram(4 * (N + 2 * 2048 * 256)) + FLOOR)
    assert width(kernels(op, machine())[0]) == 0.3
    assert unknown(replace(op, operands=()))


# reductions


def test_a_reduction_inside_blocks_starts_as_traced() -> None:
    op = call("aten.sum", tensor("x", 2048, 1), out=(1, 1))
    (time,) = times(op)
    assert 5.0 <= time <= 6.7  # traced, of 2048 values
    assert time == pytest.approx(3.0 + (2600 + 690) / 1297)  # four values a thread, read at once
    assert times(op, mode="paper") == near(dram(4 * 2048))
    for mode in ("paper", "corrected"):
        assert width(kernels(op, machine(mode=mode))[0]) == 0.25


@pytest.mark.parametrize("columns", [64, 128, 256])
def test_a_column_sum_across_blocks_takes_what_was_traced(columns: int) -> None:
    op = call("aten.sum", tensor("x", 2048, columns), out=(1, columns), dim=(0,))
    clear, time = times(op)
    assert clear == 1.0
    assert 9.5 <= time <= 13.6  # traced: 10 to 13


@pytest.mark.parametrize(
    ("rows", "columns", "launched"),
    [
        (1020, 1024, 1),
        (1024, 1024, 2),  # 256 rows for each of four threads to a column
        (127, 1024, 1),
        (127, 1 << 20, 1),
    ],
)
def test_long_reductions_share_a_result(rows: int, columns: int, launched: int) -> None:
    op = call("aten.sum", tensor("x", rows, columns), out=(columns,), dim=(0,))
    found = kernels(op, machine())
    assert [k.launch for k in found] == ["memset", "kernel"][-launched:]
    assert width(found[0]) == (0.25 if launched == 1 else 0.0)


def test_short_rows_of_images_leave_lanes_idle() -> None:
    short = call("aten.mean", tensor("x", 2048, 2048, 7, 7), out=(2048, 2048, 1, 1))
    (time,) = times(short)
    share = dram(4 * 2048 * 2048 * 50) / time
    assert 0.35 <= share <= 0.5  # traced: 0.42


def test_a_running_sum_reads_and_writes_in_place() -> None:
    op = in_place("aten.cumsum_", tensor("x", 2048, 1024))
    # 16 threads a row go along it in chunks of 32 values, one block to a multiprocessor
    assert times(op) == near(1024 / 32 * (1580 + 790) / 1297 + 0.33 * FLOOR)
    wide = replace(op, attributes={"dim": 0})
    assert times(wide) == near(dram(2 * 4 * N) + FLOOR)
    (found,) = kernels(wide, machine())
    assert found.outside and width(found) == 0.4
    assert unknown(replace(op, operands=()))


def test_a_product_of_vectors_reads_both() -> None:
    op = call("aten.dot", tensor("x", N), tensor("y", N), out=())
    one = call("aten.sum", tensor("x", N), tensor("y", N), out=())
    assert times(op)[1] - times(one)[1] == pytest.approx(dram(4 * N), rel=0.05)
    assert times(replace(op, operands=op.operands[:1])) == times(one)
    assert all(unknown(other) for other in without(op))


def test_a_sum_to_nothing_is_a_sum_to_one() -> None:
    op = call("aten.sum", tensor("x", 0, 4), out=(0,))
    assert times(op) == near(3.0 + 2600 / 1297)


# sorting


def test_a_block_sorts_4096_values_and_longer_rows_take_passes() -> None:
    """Rows are sorted by a warp, by a block, or each by itself over segments of all."""
    share = 512 / 80  # rows of a multiprocessor
    expected = {
        32: 7000 + share * (130 + 6.3 * 32),
        128: 7500 + share * 1500,
        4096: 17400 + share * (20900 + 3.4 * 4096),
        4097: 15000 + share * 4097 * 22,
    }
    for columns, work in expected.items():
        op = call("aten.sort", tensor("x", 512, columns), out=(512, columns), dim=1)
        number, sort = times(op)
        assert number == pytest.approx(dram(8 * 512 * columns) + FLOOR)
        assert sort == pytest.approx(work / 1297 + 2 * FLOOR)
        first, second = kernels(op, machine())
        assert (width(first), width(second)) == (0.3, 0.4)


def test_one_long_slice_takes_passes_over_the_key() -> None:
    op = call("aten.sort", tensor("x", N), out=(N,))
    sort = times(op)[1]
    assert sort == pytest.approx(4 * (dram(3 * 12 * N) + 2 * FLOOR))
    found = kernels(op, machine())[1]
    assert found.outside and width(found) == 0.6


def test_a_sort_takes_its_axis_from_the_op() -> None:
    tall = tensor("x", 5000, 8)
    given: list[dict[str, Value]] = [{"dim": 0}, {"dim": None}, {"dim": 1}, {}]
    ops = [call("aten.sort", tall, out=(5000, 8), **dim) for dim in given]
    by_column, of_all, by_row, by_default = (times(op)[1] for op in ops)
    assert by_row == by_default < of_all < by_column
    assert len(times(call("aten.sort", tensor("x"), out=()))) == 2
    assert unknown(Op("aten.sort", (), ()))


@pytest.mark.parametrize(("rows", "again"), [(1024, cache), (1536, cache), (1537, dram)])
def test_a_selection_reads_its_rows_once_for_two_bits(
    rows: int, again: Callable[[float], float]
) -> None:
    """Sixteen passes over keys of 32 bits, from the cache of 6 MiB where it holds them."""
    source = tensor("x", rows, 1024)
    op = call("aten.kthvalue", source, out=(rows,))
    assert times(op) == near(dram(source.nbytes) + 16 * again(source.nbytes) + FLOOR)
    (found,) = kernels(op, machine())
    assert found.outside and width(found) == 0.6
    assert unknown(replace(op, operands=()))


def test_the_largest_are_sorted_after_their_selection() -> None:
    op = call("aten.topk", tensor("x", 512, 1024), out=(512, 8), k=8, dim=1)
    share = 512 / 80 - 0.5
    walk = 13500 + 11.5 * 1024 + share * (380 + 13.6 * 1024)
    assert times(op) == near(walk / 1297 + 2 * FLOOR)
    assert width(kernels(op, machine())[0]) == 0.4
    several = replace(op, operands=(tensor("x", 512, 3000),))
    assert times(several) == near((49500 + 512 / 80 * (5500 + 2.9 * 3000)) / 1297 + 2 * FLOOR)
    wide = call("aten.topk", tensor("x", 512, 1024), out=(512, 1024), k=1024, dim=1)
    assert times(wide)[1] == times(call("aten.sort", tensor("x", 512, 1024), out=(512, 1024)))[1]
    assert len(times(replace(wide, attributes={"dim": 1, "sorted": False}))) == 1
    assert len(times(replace(op, results=()))) == 1


def test_places_are_counted_copied_and_written() -> None:
    mask = tensor("m", N, dtype="bool")
    op = Op("aten.nonzero", (mask,), (tensor("y", 1000, 1, dtype="i64"),))
    expected = [dram(N) + FLOOR, 1.8 + 8 / 12.4e3, dram(N + 8000) + FLOOR]
    assert times(op) == near(*expected)
    found = kernels(op, machine())
    assert [k.outside for k in found] == [False, False, True]
    assert [width(k) for k in found] == [0.6, 0.15, 0.6]
    assert kernels(op, replace(machine(), pinned=True))[1].blocking
    assert found[1].name == "device to host 1"
    every = times(replace(op, results=()))
    assert every[2] == pytest.approx(dram(N + 8 * N) + FLOOR)
    assert unknown(Op("aten.nonzero", (), ()))


def test_unique_values_are_sorted_unless_they_are_in_order() -> None:
    op = call("aten._unique2", tensor("x", 8, 1024), out=(100,))
    ordered = replace(op, name="aten.unique_consecutive")
    # all 8,192 values together: in passes
    assert "4 passes" in kernels(op, machine())[1].name
    assert len(times(op)) == 5 and times(op)[2:] == times(ordered)
    assert times(ordered)[2] == pytest.approx(dram(4 * 8192 + 8 * 8192) + FLOOR)
    assert unknown(Op(op.name, (), ()))


def test_a_binary_search_moves_values_and_places_once() -> None:
    op = Op("aten.bucketize", (tensor("x", N), tensor("b", 64)), (tensor("y", N, dtype="i64"),))
    assert times(op) == near(dram(12 * N + 256) + FLOOR)
    assert width(kernels(op, machine())[0]) == 0.6
    assert unknown(replace(op, results=()))
    narrow = Op("aten.isin", (tensor("x", N, dtype="i8"),), (tensor("y", N, dtype="bool"),))
    assert times(narrow) == near(cycles(N, 1.4) + FLOOR)
