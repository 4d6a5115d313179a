"""Gradients of embedding tables."""

from __future__ import annotations

import pytest

from costmodels.formulas.lookup import LookupTable
from costmodels.formulas.table_gradient import dense_gradient, sparse_gradient
from costmodels.lookups.popularity import Zipf
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Value
from irgraph.ir.tensor import Tensor
from tests.costmodels.families.helpers import call, kernels, machine, tensor, total

ONE = LookupTable(1_000_000, 64, 2048, 204_800)


def _backward(**attributes: Value) -> tuple[Kernel, ...]:
    operands = [tensor("g", 64, 32), *(tensor(n, 6400, dtype="i64") for n in "io")]
    given = {"num_weights": 100_000, "mode": 0, **attributes}
    return kernels(
        call("aten._embedding_bag_backward", *operands, out=(100_000, 32), **given), machine()
    )


def test_popular_rows_need_fewer_partial_sums_and_writes() -> None:
    even, skewed = (
        {k.name.partition(" ")[0]: k.time for k in dense_gradient(one, machine())}
        for one in (ONE, LookupTable(1_000_000, 64, 2048, 204_800, indices=Zipf(1.2)))
    )
    assert skewed["sums"] < 0.5 * even["sums"]
    assert skewed["fill"] == even["fill"]


def test_software_of_cuda_11_waits_for_three_counts() -> None:
    old = machine(software="torch-1.10-cuda-11.3")
    waits = [k.launch for k in dense_gradient(ONE, old) if k.blocking]
    assert waits == ["memcpy"] * 3
    assert not any(k.blocking for k in dense_gradient(ONE, machine()))


def test_half_precision_sums_stay_in_single_precision() -> None:
    half = LookupTable(1_000_000, 64, 2048, 204_800, size=2)
    by_name = {k.name: k.time for k in dense_gradient(half, machine())}
    full = {k.name: k.time for k in dense_gradient(ONE, machine())}
    sums = "partial sums 204800x64"
    assert 0.6 * full[sums] < by_name[sums] < full[sums]


def test_weights_of_indices_are_read_too() -> None:
    assert total(dense_gradient(ONE, machine(), True)) > total(dense_gradient(ONE, machine()))


def test_averaged_and_weighted_sparse_rows_are_scaled() -> None:
    counts = [len(sparse_gradient(ONE, machine(), factors)) for factors in (0, 1, 2)]
    assert counts == [1, 4, 7]


def test_the_mode_decides_how_a_sparse_gradient_is_made() -> None:
    weights = tensor("p", 6400)
    assert len(_backward(sparse=True)) == 1
    assert len(_backward(sparse=True, mode=1)) == 4
    assert len(_backward(sparse=True, mode=1, per_sample_weights=weights)) == 7


def test_the_greatest_of_each_column_scatters_without_a_sort() -> None:
    found = _backward(mode=2)
    assert [k.family for k in found] == ["fill", "embedding"]
    assert found[1].name == "max gradient 64x32"


def test_the_gradient_of_weights_reads_rows_and_bags() -> None:
    op = call(
        "aten._embedding_bag_per_sample_weights_backward",
        tensor("g", 2048, 64),
        tensor("w", 1_000_000, 64),
        *(tensor(n, 204_800, dtype="i64") for n in "io"),
        out=(204_800,),
    )
    (found,) = kernels(op, machine())
    # 204,800 rows of 256 bytes, nearly all from DRAM, at 817 GB/s
    assert found.time == pytest.approx(204_800 * 256 / 817e3 + 8, rel=0.1)


@pytest.mark.parametrize(("lookups", "count"), [(3072, 2), (3073, 12)])
def test_few_indices_need_no_sort(lookups: int, count: int) -> None:
    op = call(
        "aten.embedding_dense_backward",
        tensor("g", lookups, 64),
        tensor("i", lookups, dtype="i64"),
        out=(5000, 64),
        num_weights=5000,
        padding_idx=-1,
        scale_grad_by_freq=False,
    )
    assert len(kernels(op, machine())) == count


def test_the_greatest_of_a_bag_writes_where_it_came_from() -> None:
    def lookup(mode: int, aside: tuple[Tensor, ...]) -> float:
        op = call(
            "aten._embedding_bag",
            tensor("w", 1000, 64),
            tensor("i", 4096, dtype="i64"),
            tensor("o", 4096, dtype="i64"),
            out=(4096, 64),
            mode=mode,
        )
        from msgspec.structs import replace

        return total(kernels(replace(op, results=(*op.results, *aside)), machine()))

    places = tensor("m", 4096, 64, dtype="i64")
    assert lookup(2, (places,)) - lookup(0, ()) == pytest.approx(
        (places.nbytes - 8 * 4096) / 817e3, rel=0.1
    )


def test_a_sparse_batched_gradient_fills_no_table() -> None:
    gradients = tuple(tensor(f"g{i}", 64, 32) for i in range(3))
    indices = tuple(tensor(f"i{i}", 640, dtype="i64") for i in range(3))
    given = {"num_weights": (10**6,) * 3, "mode": 0}
    operands = (gradients, indices, indices)
    dense = call("irgraph.batched_embedding_backward", *operands, out=(1,), **given)
    sparse = call("irgraph.batched_embedding_backward", *operands, out=(1,), sparse=True, **given)
    assert [k.family for k in kernels(dense, machine())] == ["fill", "embedding"]
    (found,) = kernels(sparse, machine())
    assert found.name == "gradient rows of 3 tables"
