"""Decompositions, solvers, transforms and distances: nothing is free, silent or narrow."""

from __future__ import annotations

import pytest

from costmodels.families.linalg import EUCLIDEAN, MATRIX_WORK
from irgraph.ir.op import Op
from tests.costmodels.families.helpers import call, kernels, machine, tensor, total


def on_matrix(name: str, side: int, batch: int = 1, dtype: str = "f32") -> Op:
    matrix = tensor("a", batch, side, side, dtype=dtype)
    right_sides = tensor("b", batch, side, side, dtype=dtype)
    return call(f"aten.{name}", matrix, right_sides, out=(batch, side, side))


@pytest.mark.parametrize("name", MATRIX_WORK)
def test_work_on_a_matrix_grows_with_its_side_and_is_marked_unmeasured(name: str) -> None:
    times = []
    for side in (32, 64, 512, 1024, 4096):
        (kernel,) = kernels(on_matrix(name, side), machine("a100"))
        assert kernel.outside
        assert kernel.spread >= kernel.time
        assert "not measured" in kernel.formula
        times.append(kernel.time)
    assert times == sorted(times)
    assert times[-1] > 2 * times[-2]


@pytest.mark.parametrize("name", MATRIX_WORK)
def test_a_batch_shares_the_dependent_steps(name: str) -> None:
    single = total(kernels(on_matrix(name, 256), machine("a100")))
    batched = total(kernels(on_matrix(name, 256, 64), machine("a100")))
    assert single < batched < 64 * single


@pytest.mark.parametrize("name", ["linalg_cholesky_ex", "_linalg_svd", "linalg_qr"])
def test_double_precision_takes_at_least_as_long(name: str) -> None:
    single = total(kernels(on_matrix(name, 2048), machine("v100")))
    assert total(kernels(on_matrix(name, 2048, dtype="f64"), machine("v100"))) > single


def test_a_transform_passes_each_axis_through_memory() -> None:
    def transform(*axes: int) -> Op:
        source = tensor("x", 64, 512, 512, dtype="c64")
        out = (64, 512, 512)
        return call("aten._fft_c2c", source, out=out, dim=axes, normalization=0, forward=True)

    one, two = (total(kernels(transform(*axes), machine())) for axes in ((2,), (1, 2)))
    assert two == pytest.approx(2 * one)
    floor = 2 * 64 * 512 * 512 * 8 / 900e3
    assert one > floor


def test_distances_of_many_rows_run_as_a_product_if_euclidean() -> None:
    def distances(norm: float) -> Op:
        rows, columns = tensor("x", 4096, 64), tensor("y", 4096, 64)
        return call("aten._cdist_forward", rows, columns, out=(4096, 4096), p=norm)

    euclidean, manhattan = (total(kernels(distances(p), machine())) for p in (2.0, 1.0))
    assert manhattan > 2 * euclidean
    rows = tensor("x", 4096, 64)
    product = call("aten._euclidean_dist", rows, tensor("y", 4096, 64), out=(4096, 4096))
    assert total(kernels(product, machine())) == euclidean


@pytest.mark.parametrize(("mode", "rows", "is_product"), [(1, 8, True), (2, 4096, False)])
def test_programs_choose_how_distances_are_computed(mode: int, rows: int, is_product: bool) -> None:
    operands = tensor("x", rows, 64), tensor("y", rows, 64)
    op = call("aten._cdist_forward", *operands, out=(rows, rows), p=2.0, compute_mode=mode)
    (kernel,) = kernels(op, machine())
    assert (kernel.formula == EUCLIDEAN) is is_product


def test_gradients_of_distances_write_the_gradient_of_every_pair() -> None:
    operands = tensor("g", 500, 900), tensor("x", 500, 64), tensor("y", 900, 64)
    op = call("aten._cdist_backward", *operands, tensor("d", 500, 900), out=(500, 64), p=1.0)
    assert total(kernels(op, machine())) > 2 * 500 * 900 * 64 * 4 / 900e3


def test_error_codes_are_copied_to_the_host_which_waits() -> None:
    op = Op("aten._linalg_check_errors", (tensor("info", 8, dtype="i32"),))
    (kernel,) = kernels(op, machine())
    assert kernel.blocking
    assert kernel.launch == "memcpy"
