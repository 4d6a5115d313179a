"""Decompositions, solvers, Fourier transforms and distances.

None of them was measured: operations are counted as in LAPACK, dependent steps as in the usual
algorithms, and intervals are as wide as the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from msgspec import Struct

from costmodels.families.copy import host_copy
from costmodels.formulas.elements import streaming
from costmodels.formulas.intervals import BORROWED, UNKNOWN
from costmodels.formulas.machine import SMALL, Machine, Rule, shape_text, traffic, work
from costmodels.formulas.tiles import Product, tiled_time
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor

SOURCE = (
    "not measured: operations as LAPACK counts them at a quarter of the plain cores' peak, and the "
    "columns, blocks or sweeps that follow each other (Golub and Van Loan, Matrix Computations)"
)

FFT = "not measured: every axis passes through memory once for each 4,096 points (cuFFT)"

DISTANCES = "not measured: a block for each pair (torch, DistanceKernel.cu), or operations"

EUCLIDEAN = "not measured: a product of both sets of rows, then three passes over the distances"

MIN_PRODUCT_ROWS = 25
"""Number of rows beyond which torch computes Euclidean distances by a product (Distance.cpp)."""

BY_ROWS, PRODUCT = 0, 1
"""Modes of Euclidean distances: a product of many rows (the default), or always."""

PEAK_SHARE = 0.25
"""Share of the plain cores' peak that operations of decompositions reach, an assumption."""

BLOCK = 32
"""Columns that a triangular solver eliminates together."""

JACOBI_SWEEPS = 10
"""Sweeps of a Jacobi method until it converges."""

FFT_POINTS = 4096
"""Points of a Fourier transform that fit into shared memory, so that one pass computes them."""

RESIDENT_BLOCKS, BLOCK_TIME = 8, 1.0
"""Blocks of pairs that a multiprocessor runs at a time, and microseconds of one, assumptions."""


class MatrixWork(Struct, frozen=True):
    """Work on one matrix.

    Attributes:
        flop: floating-point operations.
        steps: number of dependent steps.
        launches: starts of kernels in each step.
        step_bytes: bytes that each step moves.
    """

    flop: float
    steps: float
    launches: float = 1.0
    step_bytes: float = 0.0


Count = Callable[[float, float, float, int], MatrixWork]
"""Function from rows, columns, right-hand sides and bytes of an element to the work."""


def _cholesky(rows: float, columns: float, sides: float, size: int) -> MatrixWork:
    return MatrixWork(columns**3 / 3, columns, 0.5)


def _lu(rows: float, columns: float, sides: float, size: int) -> MatrixWork:
    return MatrixWork(2 * rows * columns**2 / 3, columns)


def _inverse(rows: float, columns: float, sides: float, size: int) -> MatrixWork:
    return MatrixWork(2 * columns**3, columns + columns / BLOCK)


def _qr(rows: float, columns: float, sides: float, size: int) -> MatrixWork:
    return MatrixWork(2 * rows * columns**2, columns)


def _triangular(rows: float, columns: float, sides: float, size: int) -> MatrixWork:
    return MatrixWork(columns**2 * sides, columns / BLOCK)


def _two_triangular(rows: float, columns: float, sides: float, size: int) -> MatrixWork:
    return MatrixWork(2 * columns**2 * sides, 2 * columns / BLOCK)


def _solve(rows: float, columns: float, sides: float, size: int) -> MatrixWork:
    flop = 2 * columns**3 / 3 + 2 * columns**2 * sides
    return MatrixWork(flop, columns + 2 * columns / BLOCK)


def _eigenvalues(rows: float, columns: float, sides: float, size: int) -> MatrixWork:
    return MatrixWork(9 * columns**3, columns, 3, columns**2 * size / 3)


def _svd(rows: float, columns: float, sides: float, size: int) -> MatrixWork:
    flop = JACOBI_SWEEPS * 6 * rows * columns**2
    return MatrixWork(flop, JACOBI_SWEEPS * columns, 2, 4 * rows * columns * size)


MATRIX_WORK: dict[str, Count] = {
    "linalg_cholesky_ex": _cholesky,
    "cholesky": _cholesky,
    "cholesky_inverse": _inverse,
    "cholesky_solve": _two_triangular,
    "linalg_lu_factor_ex": _lu,
    "linalg_lu": _lu,
    "_linalg_det": _lu,
    "_linalg_slogdet": _lu,
    "linalg_lu_solve": _two_triangular,
    "_linalg_solve_ex": _solve,
    "linalg_inv_ex": _inverse,
    "linalg_solve_triangular": _triangular,
    "triangular_solve": _triangular,
    "linalg_qr": _qr,
    "geqrf": _qr,
    "linalg_householder_product": _qr,
    "linalg_lstsq": _qr,
    "_linalg_eigh": _eigenvalues,
    "_linalg_svd": _svd,
}
"""Work of the ops that treat each matrix of their first or second operand."""

RIGHT_FIRST = ("cholesky_solve", "triangular_solve")
"""Ops whose first operand is the right-hand side."""


def _matrices(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price an op on each matrix of a batch."""
    tensors = [t for t in op.inputs if t.rank >= 2 and t.dtype not in ("i32", "i64")]
    if not tensors:
        return None
    if op.base in RIGHT_FIRST:
        tensors.reverse()
    matrix = tensors[0]
    right_sides = tensors[-1].shape[-1] if len(tensors) > 1 else 1
    rows, columns = sorted(matrix.shape[-2:], reverse=True)
    if not columns:
        return ()
    batch = matrix.numel // (rows * columns)
    load = MATRIX_WORK[op.base](rows, columns, right_sides, matrix.itemsize)
    arithmetic = batch * load.flop * _complex_factor(matrix) / _rate(matrix, machine)
    memory = machine.stream(traffic(*op.inputs, *op.outputs))
    step_time = load.launches * SMALL + machine.stream(batch * load.step_bytes)
    time = max(arithmetic, memory) + load.steps * step_time + SMALL
    name = f"{op.base.strip('_')} {shape_text(matrix)}"
    return (work("linalg", name, time, UNKNOWN, SOURCE, outside=True),)


def _complex_factor(tensor: Tensor) -> int:
    """Return the real multiplications of one multiplication."""
    return 4 if tensor.dtype.startswith("c") else 1


def _rate(tensor: Tensor, machine: Machine) -> float:
    """Return the operations of a microsecond."""
    kind = "f64" if tensor.dtype in ("f64", "c128") else "f32"
    return machine.sheet.peak(kind)[0] * PEAK_SHARE * 1e3


def _fourier(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price a Fourier transform: passes over its axes, one after the other."""
    source = op.inputs[0] if op.inputs else None
    axes = op.attributes.get("dim")
    if source is None or not isinstance(axes, tuple) or not op.outputs:
        return None
    nbytes = 2 * max(traffic(source), traffic(op.outputs[0]))
    kernels: list[Kernel] = []
    for axis in axes:
        if not isinstance(axis, int):
            return None
        points = max(source.shape[axis], op.outputs[0].shape[axis], 2)
        passes = math.ceil(math.log(points, FFT_POINTS))
        time = passes * streaming(machine, nbytes)
        name = f"{op.base.strip('_')} {shape_text(source)} axis {axis}"
        kernels.append(work("linalg", name, time, BORROWED, FFT, outside=True))
    return tuple(kernels)


def _distances(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price the distances between all pairs of rows."""
    if len(op.inputs) < 2 or not op.outputs:
        return None
    first, second = op.inputs[:2]
    norm = op.attributes.get("p", 2)
    rows = max(first.shape[-2], second.shape[-2])
    mode = op.attributes.get("compute_mode") or BY_ROWS
    if norm == 2 and (mode == PRODUCT or (mode == BY_ROWS and rows > MIN_PRODUCT_ROWS)):
        return _euclidean(op, machine)
    nbytes = traffic(*op.outputs)
    return (_pairs_kernel(op, first, second, nbytes, machine),)


def _distance_gradients(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price the gradient of distances: of each pair, then summed over the second rows."""
    if len(op.inputs) < 3:
        return None
    first, second = op.inputs[1:3]
    nbytes = 2 * first.numel * second.shape[-2] * first.itemsize
    return (_pairs_kernel(op, first, second, nbytes, machine),)


def _pairs_kernel(op: Op, first: Tensor, second: Tensor, nbytes: float, machine: Machine) -> Kernel:
    """Return the kernel that computes each pair of rows in a block."""
    differences = first.numel * second.shape[-2]
    pairs = differences // max(first.shape[-1], 1)
    blocks = pairs / (machine.sheet.sms * RESIDENT_BLOCKS) * BLOCK_TIME
    arithmetic = 3 * differences / _rate(first, machine)
    time = max(arithmetic, blocks, machine.stream(nbytes)) + SMALL
    return work("linalg", _pairs_name(op, first, second), time, UNKNOWN, DISTANCES, outside=True)


def _euclidean(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price Euclidean distances by a product of rows with their norms."""
    first, second = op.inputs[:2]
    depth = first.shape[-1]
    batch = first.numel // max(depth * first.shape[-2], 1)
    product = Product(batch, first.shape[-2], second.shape[-2], depth + 2, first.dtype, "tn")
    passes = streaming(machine, 2 * traffic(*op.outputs))
    time = tiled_time(product, machine)[0] + 3 * passes
    name = _pairs_name(op, first, second)
    return (work("linalg", name, time, UNKNOWN, EUCLIDEAN, outside=True),)


def _pairs_name(op: Op, first: Tensor, second: Tensor) -> str:
    """Return the name of a kernel with the sizes of both sets of rows."""
    return f"{op.base.strip('_')} {shape_text(first)} {shape_text(second)}"


def _check(op: Op, machine: Machine) -> tuple[Kernel, ...]:
    """Price the copy of error codes to the host, which waits for it."""
    codes = op.inputs[0]
    return (host_copy(codes, machine, to_host=True, waits=True),)


RULES: dict[str, Rule] = {
    **{f"aten.{name}": _matrices for name in MATRIX_WORK},
    **dict.fromkeys(("aten._fft_r2c", "aten._fft_c2r", "aten._fft_c2c"), _fourier),
    "aten._cdist_forward": _distances,
    "aten._cdist_backward": _distance_gradients,
    "aten._euclidean_dist": _euclidean,
    "aten._linalg_check_errors": _check,
}
