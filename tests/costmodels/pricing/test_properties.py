"""Properties of every family's prices, at sizes drawn at random from the sweeps."""

from __future__ import annotations

import random
from math import prod

import numpy as np
import pytest

from costmodels.benchmarks.bench import Case
from costmodels.benchmarks.captured import captured
from costmodels.devices.library import load_device
from costmodels.families import shipped_sweeps
from irgraph.backend import backend
from irgraph.ir.cost import PriceOptions
from irgraph.ir.graph import Graph

pytest.importorskip("torch")

DEVICES = ("h100-80gb-hbm3", "a100-sxm4-80gb")

MAX_FALL = 0.05
"""Largest share by which a time may fall while a size doubles."""

SHORT_KERNELS = {
    "linear": "cuBLAS chooses among kernels that differ by microseconds",
    "tf32": "cuBLAS chooses among kernels that differ by microseconds",
    "norm": "more channels occupy more multiprocessors",
    "reduce": "few rows are added up by one thread after the other, more by several",
}
"""Sweeps whose short calls may run a faster kernel at a larger size, and why."""

VECTORS = {
    **SHORT_KERNELS,
    "scatter": "blocks copy rows of whole vectors",
    "stem": "images of one channel have no layout, and cuDNN pads a few channels",
}
"""Sweeps whose unaligned calls may do so, and why."""

LONG_US = 20.0
"""Minimum microseconds of a call that fills the device with any kernel."""

MAX_PRODUCTS = {"tf32": 2.0**33}
"""Maximum product of a drawn case's sizes if not 2^26: matrix units make short calls of those."""

STEP = "stride"
"""Size that is the distance of windows: a larger one makes a smaller call."""

ALIGNED = 64
"""Multiple to which sides are rounded up: then all run the kernels for whole vectors."""


def drawn_case(sweep: str, source: random.Random, dtype: str) -> tuple[Case, str]:
    """Return a case of a sweep and the name of one of its sizes."""
    cases = shipped_sweeps()[sweep].plan(sweep, 40, seed=source.randrange(10**6), dtypes=(dtype,))
    max_product = MAX_PRODUCTS.get(sweep, 2.0**26)
    small_cases = [case for case in cases if prod(map(float, case.sizes.values())) < max_product]
    case = source.choice(small_cases or cases)
    return case, source.choice(sorted(case.sizes.keys() - {STEP}))


def captured_case(case: Case, **sizes: int) -> Graph:
    """Return the call of a case, with other values of some sizes."""
    resized = Case(case.family, case.op, case.dtype, {**case.sizes, **sizes}, case.indices)
    names = ("family", "op", "dtype", "sizes", "indices", "key")
    return captured({name: getattr(resized, name) for name in names})


def time_of(graph: Graph, device: str, indices: str = "") -> float:
    """Return the microseconds of a call's kernels."""
    priced = backend().price(graph, device, PriceOptions(indices=(indices or "uniform",)))
    return sum(kernel.time for kernels in priced.kernels.values() for kernel in kernels)


@pytest.mark.parametrize("sweep", sorted(set(shipped_sweeps()) - set(VECTORS)))
def test_a_time_does_not_fall_while_a_size_doubles(sweep: str) -> None:
    source = random.Random(sweep)
    for _ in range(3):
        case, name = drawn_case(sweep, source, "f32")
        graphs = [captured_case(case), captured_case(case, **{name: 2 * case.sizes[name]})]
        for device in DEVICES:
            small, large = (time_of(graph, device, case.indices) for graph in graphs)
            assert large >= (1 - MAX_FALL) * small, (device, case.key, name)


@pytest.mark.parametrize("sweep", VECTORS)
def test_a_long_time_does_not_fall_while_an_aligned_size_doubles(sweep: str) -> None:
    source, long_calls = random.Random(sweep), 0
    min_time = LONG_US if sweep in SHORT_KERNELS else 0.0
    for _ in range(10):
        case, name = drawn_case(sweep, source, "f32")
        sizes = {side: -(-size // ALIGNED) * ALIGNED for side, size in case.sizes.items()}
        sizes |= {"batch": case.sizes["batch"]} if "batch" in sizes else {}
        doubled = {**sizes, name: 2 * sizes[name]}
        graphs = [captured_case(case, **sizes), captured_case(case, **doubled)]
        for device in DEVICES:
            small, large = (time_of(graph, device, case.indices) for graph in graphs)
            long_calls += small >= min_time
            assert small < min_time or large >= (1 - MAX_FALL) * small, (device, case.key, name)
    assert long_calls >= 3


TWINS = ("h100-80gb-hbm3", "gh200", "h200")
"""Cards with one chip and other memories."""


@pytest.mark.parametrize("sweep", sorted(shipped_sweeps()))
def test_cards_with_one_chip_differ_by_their_memory(sweep: str) -> None:
    source = random.Random(f"twins {sweep}")
    bandwidths = [load_device(device).dram_gbs.datasheet for device in TWINS]
    most = 1.15 * max(bandwidths) / min(bandwidths)
    for dtype in ("f32", "f16", "bf16"):
        case, _ = drawn_case(sweep, source, dtype)
        if "host" in case.op or "device" in case.op:  # GH200's link to its host is another one
            continue
        graph = captured_case(case)
        times = [time_of(graph, device, case.indices) for device in TWINS]
        assert max(times) <= most * min(times), (case.key, times)


CONVERSION = 0.5
"""Microseconds by which short kernels of 16 bits are longer: they convert to f32 and back."""


@pytest.mark.parametrize("sweep", ["linear", "bmm", "elementwise", "softmax", "pool"])
def test_wider_elements_take_at_least_as_long(sweep: str) -> None:
    source = random.Random(sweep)
    for _ in range(3):
        case, _ = drawn_case(sweep, source, "f32")
        sizes = {name: max(-(-size // 64) * 64, 64) for name, size in case.sizes.items()}
        sizes |= {"batch": case.sizes["batch"]} if "batch" in sizes else {}
        narrow = Case(case.family, case.op, "f16", case.sizes, case.indices)
        graphs = [captured_case(narrow, **sizes), captured_case(case, **sizes)]
        for device in DEVICES:
            halves, floats = (time_of(graph, device) for graph in graphs)
            assert floats >= 0.95 * halves - CONVERSION, (device, case.key)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_products_stay_below_the_peak(dtype: str) -> None:
    source = random.Random(dtype)
    for _ in range(4):
        m, n, k = (2 ** source.randint(9, 13) for _ in range(3))
        sizes = {"batch": 1, "m": m, "n": n, "k": k}
        for device in DEVICES:
            graph = captured_case(Case("linear", "linear", dtype, sizes))
            peak = load_device(device).peak(dtype)[0] * 1e3
            assert 2.0 * m * n * k / time_of(graph, device) < 1.05 * peak, (device, sizes)


EDGES = {"relu": ("elementwise", "rows", 2**16), "softmax": ("softmax", "rows", 2**16)}
"""Ops with a size whose measured range ends there."""


@pytest.mark.parametrize("op", EDGES)
def test_the_border_of_the_measured_sizes_is_continuous(op: str) -> None:
    family, name, edge = EDGES[op]
    case = Case(family, op, "f32", {"rows": 64, "cols": 256})
    steps = np.geomspace(edge / 4, edge * 16, 25).round().astype(int).tolist()
    times = [time_of(captured_case(case, **{name: size}), DEVICES[0]) for size in steps]
    growth = np.array(times[1:]) / np.array(times[:-1])
    sizes = np.array(steps[1:]) / np.array(steps[:-1])
    assert (growth < 1.1 * sizes).all() and (growth > 0.9).all()
