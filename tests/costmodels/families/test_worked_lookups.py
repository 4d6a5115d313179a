"""Embedding lookups, and those of FBGEMM, worked out by hand for a V100."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor
from tests.costmodels.families.helpers import call, kernels, machine, tensor, total
from tests.costmodels.families.worked import (
    FLOOR,
    cache,
    cycles,
    dram,
    near,
    times,
    unknown,
    width,
)

ROWS, WIDTH, BAGS, LOOKUPS = 1000, 64, 2048, 20_480
ROW = 4 * WIDTH


def bag(*more: Tensor, offsets: int = BAGS, dtype: str = "i64", **attributes: Value) -> Op:
    """Return bags over a table of 256 KB: each row comes from DRAM once, then from the cache."""
    index = (tensor("i", LOOKUPS, dtype=dtype), tensor("o", offsets, dtype=dtype))
    made = (tensor("y", BAGS, WIDTH), *more)
    return Op("aten._embedding_bag", (tensor("w", ROWS, WIDTH), *index), made, attributes)


def lookup(aside: float, index: int = 8) -> float:
    """Return the longer of DRAM's and the cache's time."""
    seen = ROWS * (1 - (1 - 1 / ROWS) ** LOOKUPS)
    read = dram(LOOKUPS * index + BAGS * ROW + seen * ROW + aside)
    held = cache(BAGS * (32 + 64) + (LOOKUPS - seen) * ROW)
    return max(read, held) + FLOOR


def test_a_bag_writes_a_place_for_each_index_beside_its_sum() -> None:
    assert times(bag()) == near(lookup(8 * LOOKUPS))
    assert times(bag(dtype="i32")) == near(lookup(4 * LOOKUPS, 4))
    large = tensor("p", 10**6, dtype="i64")
    assert times(bag(large)) == near(lookup(8e6))
    both = bag(large, per_sample_weights=tensor("s", 10**6))
    assert times(both) == near(lookup(12e6))
    assert width(kernels(bag(), machine())[0]) == 0.3
    assert times(bag(offsets=BAGS + 1, include_last_offset=True)) == times(bag())
    assert unknown(replace(bag(), operands=bag().operands[:2]))
    flat = (tensor("w", ROWS), *bag().operands[1:])
    assert unknown(replace(bag(), operands=flat))


def test_a_row_for_each_index_is_read_and_written() -> None:
    op = call(
        "aten.embedding",
        tensor("w", 10**6, 64),
        tensor("i", 64, 100, dtype="i64"),
        out=(64, 100, 64),
    )
    count = 6400
    seen = 10**6 * (1 - (1 - 1e-6) ** count)
    moved = dram(count * (8 + ROW) + seen * ROW) + FLOOR
    older = near(cycles(count * 64, 0.52) + FLOOR)  # element by element
    assert [total(kernels(op, machine(software="torch-2.7")))] == older
    assert times(op) == near(moved)
    assert times(op, "paper") == near(moved)
    assert width(kernels(op, machine())[0]) == 0.3
    assert unknown(replace(op, operands=op.operands[:1]))
    assert unknown(replace(op, operands=(tensor("w", 8), op.operands[1])))


def lists(count: int = 3) -> list[tuple[Tensor, ...]]:
    """Return gradients, indices and offsets of equal tables."""
    return [
        tuple(tensor(f"g{k}", BAGS, WIDTH) for k in range(count)),
        tuple(tensor(f"i{k}", LOOKUPS, dtype="i64") for k in range(count)),
        tuple(tensor(f"o{k}", BAGS, dtype="i64") for k in range(count)),
    ]


def batch(count: int = 3, **attributes: Value) -> Op:
    given = {"num_weights": (10**6,) * count, "mode": 0, **attributes}
    return call("irgraph.batched_embedding_backward", *lists(count), out=(1,), **given)


@pytest.mark.parametrize(("mode", "vectors"), [(0, 1), (1, 2), (2, 1)])
def test_sparse_gradients_of_a_batch_are_written_once(mode: int, vectors: int) -> None:
    """A mean reads the size of each index's bag too."""
    moved = 3 * (LOOKUPS * (ROW + vectors * 8) + BAGS * ROW)
    assert times(batch(sparse=True, mode=mode)) == near(dram(moved) + FLOOR)
    assert width(kernels(batch(sparse=True), machine())[0]) == 0.15


def test_dense_gradients_of_a_batch_fill_all_tables_and_update_rows() -> None:
    fill, update = times(batch())
    assert fill == pytest.approx(dram(3 * 10**6 * ROW) + FLOOR)
    assert [width(k) for k in kernels(batch(), machine())] == [0.15, 0.3]
    gradients, indices, offsets = lists()
    weights = tuple(tensor(f"w{k}", 10**6, WIDTH) for k in range(3))
    sgd = Op("irgraph.batched_embedding_sgd", (weights, gradients, indices, offsets), ())
    assert times(sgd) == near(update)
    assert kernels(sgd, machine(mode="paper"))[0].name.startswith("lookup update B2048 T3 L10 D64")
    for wrong in (
        replace(batch(), attributes={}),
        replace(batch(), attributes={"num_weights": (10**6,) * 2}),
        replace(batch(), operands=batch().operands[:1]),
        replace(batch(), operands=()),
        replace(sgd, operands=sgd.operands[:2]),
        replace(sgd, operands=(weights[:2], *sgd.operands[1:])),
        replace(sgd, operands=()),
    ):
        assert unknown(wrong)


def test_a_batch_reads_the_weights_of_its_indices_too() -> None:
    _, indices, offsets = lists()
    weights = tuple(tensor(f"w{k}", 10**6, WIDTH) for k in range(3))
    op = Op("irgraph.batched_embedding", (weights, indices, offsets), ())
    scales = tuple(tensor(f"s{k}", LOOKUPS) for k in range(3))
    weighted = replace(op, attributes={"per_sample_weights": scales})
    (plain,), (more,) = times(op), times(weighted)
    assert more - plain == pytest.approx(dram(3 * 4 * LOOKUPS))
    for wrong in (
        (),
        (weights,),
        (weights, indices),
        (weights, indices[:2], offsets),
        (weights, indices, offsets[:2]),
    ):
        assert unknown(replace(op, operands=wrong))


def test_gradients_without_their_operands_are_unknown() -> None:
    one = [tensor("g", 64, 32), *(tensor(n, 6400, dtype="i64") for n in "io")]
    given = {"num_weights": 100_000, "mode": 0}
    op = call("aten._embedding_bag_backward", *one, out=(100_000, 32), **given)
    assert not unknown(op)
    assert unknown(replace(op, operands=op.operands[:2]))
    assert unknown(replace(op, attributes={}))
    assert unknown(replace(op, operands=(*op.operands[:2], 0)))
    rows = call("aten.embedding_dense_backward", *one[:2], out=(100_000, 32), num_weights=100_000)
    assert not unknown(rows)
    assert unknown(replace(rows, operands=rows.operands[:1]))
    assert unknown(replace(rows, attributes={}))
    weights = call(
        "aten._embedding_bag_per_sample_weights_backward",
        one[0],
        tensor("w", 10**5, 32),
        *one[1:],
        out=(6400,),
    )
    assert not unknown(weights)
    assert not unknown(replace(weights, operands=weights.operands[:3]))
    assert unknown(replace(weights, operands=weights.operands[:2]))
    flat = (one[0], tensor("w", 32), *one[1:])
    assert unknown(replace(weights, operands=flat))


def test_a_sparse_bag_is_told_by_the_name_of_its_op_too() -> None:
    one = [tensor("g", 64, 32), *(tensor(n, 6400, dtype="i64") for n in "io")]
    given = {"num_weights": 100_000, "mode": 0}
    op = call("aten._embedding_bag_sparse_backward", *one, out=(6400, 32), **given)
    assert len(times(op)) == 1
    assert len(times(replace(op, name="aten._embedding_bag_backward"))) > 1


def test_gradients_scaled_by_frequency_are_sorted_however_few() -> None:
    one = [tensor("g", 640, 32), tensor("i", 640, dtype="i64")]
    given = {"num_weights": 100_000}
    op = call("aten.embedding_dense_backward", *one, out=(100_000, 32), **given)
    assert len(times(op)) == 2
    scaled = replace(op, attributes={**given, "scale_grad_by_freq": True})
    assert any("sort" in k.name for k in kernels(scaled, machine()))


# FBGEMM

FB = Op(
    "fbgemm.split_embedding_codegen_lookup_sgd_function",
    (tensor("p", 0), tensor("w", 4 * 1_000_000 * 32)),
    (tensor("y", 2048, 128),),
    {
        "total_D": 128,
        "max_D": 32,
        "total_hash_size_bits": 22,
        "indices": tensor("i", 4 * 20_480, dtype="i64"),
        "offsets": tensor("o", 4 * 2048 + 1, dtype="i64"),
    },
)


def test_a_lookup_of_fbgemm_is_a_batched_one_with_a_start() -> None:
    weights = tuple(tensor(f"w{k}", 10**6, 32) for k in range(4))
    indices = tuple(tensor(f"i{k}", 20_480, dtype="i64") for k in range(4))
    offsets = tuple(tensor(f"o{k}", 2048, dtype="i64") for k in range(4))
    plain = Op("irgraph.batched_embedding", (weights, indices, offsets), ())
    (time,) = times(plain)
    assert times(FB) == near(time + 3.5)
    assert times(FB, mode="paper") == near(*times(plain, mode="paper"))


def test_a_small_lookup_of_fbgemm_takes_what_was_traced() -> None:
    given = {
        **FB.attributes,
        "indices": tensor("i", 4, dtype="i64"),
        "offsets": tensor("o", 5, dtype="i64"),
    }
    op = replace(FB, operands=(tensor("p", 0), tensor("w", 4 * 10 * 32)), attributes=given)
    assert times(op) == [pytest.approx(6.5, abs=0.5)]  # traced: 6 to 7


@pytest.mark.parametrize(
    ("kind", "states"),
    [
        ("sgd", 0),
        ("rowwise_adagrad", 1 / 32),
        ("adagrad", 1),
        ("partial_rowwise_adam", 1),
        ("adam", 2),
        ("lamb", 2),
        ("approx_sgd", 0),
    ],
)
def test_an_update_sorts_its_indices_and_changes_rows_and_states(kind: str, states: float) -> None:
    """Traced: 13 us before the sort, 3 + 6 to count, 2 + 5 to sum, 4 and 4 for long runs, 13."""
    every = 4 * 20_480
    seen = 4 * 10**6 * (1 - (1 - 1e-6) ** 20_480)
    vector = dram(16 * every)
    sort = 3 * (dram(3 * 16 * every) + 2 * FLOOR)
    rows = dram(2 * seen * 128 * (1 + states)) / 0.8
    update = 10 + dram(every * 8 + 2048 * 4 * 128) + rows + FLOOR
    small = [vector + start for start in (2.7, 6.0, 2.7, 5.5, 4.0, 4.0)]
    op = replace(FB, name=f"fbgemm.backward_{kind}")
    assert times(op) == near(13 + vector, sort, *small, update)
    assert {width(k) for k in kernels(op, machine())} == {0.3}


def test_a_dense_update_fills_a_gradient_first() -> None:
    op = replace(FB, name="fbgemm.backward_dense")
    sgd = times(replace(FB, name="fbgemm.backward_sgd"))
    assert times(op) == near(dram(4 * FB.inputs[1].numel) + FLOOR, *sgd)
    assert width(kernels(op, machine())[0]) == 0.2


@pytest.mark.parametrize(("bits", "passes"), [(8, 1), (9, 2), (0, 4), (None, 4)])
def test_bits_of_the_key_tell_the_passes_and_are_32_if_unknown(
    bits: int | None, passes: int
) -> None:
    attributes = {k: v for k, v in FB.attributes.items() if k != "total_hash_size_bits"}
    given = attributes if bits is None else {**attributes, "total_hash_size_bits": bits}
    op = replace(FB, name="fbgemm.backward_sgd", attributes=given)
    assert f"{passes} passes" in kernels(op, machine())[1].name


@pytest.mark.parametrize("missing", ["indices", "offsets", "total_D", "max_D"])
def test_a_lookup_that_does_not_tell_its_sizes_is_unknown(missing: str) -> None:
    given = {k: v for k, v in FB.attributes.items() if k != missing}
    for name in (FB.name, "fbgemm.backward_sgd"):
        assert unknown(replace(FB, name=name, attributes=given))
    assert unknown(replace(FB, operands=()))


def test_tables_that_were_trimmed_to_nothing_are_one_row() -> None:
    op = replace(FB, operands=(tensor("w", 16),))
    assert kernels(op, machine())[0].name == "lookup B2048 T4 L10 D32"
    none = replace(FB, attributes={**FB.attributes, "total_D": 0})
    assert " T1 " in kernels(none, machine())[0].name
    assert unknown(replace(FB, attributes={**FB.attributes, "max_D": 0}))


def test_an_update_whose_lookup_is_not_there_moves_its_gradient_three_times() -> None:
    gradient = tensor("g", 2048, 128)
    op = Op("fbgemm.backward_unpaired", (gradient,), ())
    (found,) = kernels(op, machine())
    assert found.time == pytest.approx(dram(3 * gradient.nbytes) + FLOOR)
    assert found.outside and width(found) == 1.0


SCAN = 2
"""Kernels of a running sum: cub first clears the states of its blocks."""


@pytest.mark.parametrize(
    ("name", "launched"),
    [
        # lengths moved, their running sums before and after, then indices moved
        ("permute_2D_sparse_data", 1 + 2 * SCAN + 1),
        ("permute_1D_sparse_data", 1 + 2 * SCAN + 1),
        ("permute_sparse_data", 1 + 2 * SCAN + 1),
        # lengths of each bucket, running sums of old and new, then indices dealt out
        ("block_bucketize_sparse_features", 1 + 2 * SCAN + 1),
        ("asynchronous_complete_cumsum", SCAN + 1),
        ("asynchronous_inclusive_cumsum", SCAN),
        ("asynchronous_exclusive_cumsum", SCAN),
        ("bounds_check_indices", 1),
        ("expand_into_jagged_permute", 1),
        ("jagged_to_padded_dense", 1),
        ("segment_sum_csr", 1),
    ],
)
def test_indices_are_prepared_by_so_many_kernels(name: str, launched: int) -> None:
    given, made = tensor("x", 10**6, dtype="i64"), tensor("y", 10**5, dtype="i64")
    op = Op(f"fbgemm.{name}", (given,), (made,))
    assert times(op) == near(*[dram(8.8e6) / launched + FLOOR] * launched)
    assert width(kernels(op, machine())[0]) == 0.5
    assert unknown(replace(op, operands=()))
