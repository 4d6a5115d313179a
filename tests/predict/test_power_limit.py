"""The clock of products within the power limit of a card, over a whole step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irgraph.ir.cost import Kernel, Priced
from irgraph.predict.power import (
    EXPONENT,
    MIN_CLOCK,
    STREAMING,
    clock_shares,
    draws,
    load_of,
    slow_down,
    within_power,
)
from irgraph.text import parse

GRAPH = parse("""model "m" { format = 1 }

device @gpu0 "h100"
input %a : f32[8] in $a

%b = aten.relu(%a) : f32[8] in $b
%c = aten.exp(%b) : f32[8] in $c
""")

PRODUCT = Kernel("product", "gemm", 900.0, 90.0, power=1.3)
STREAM = Kernel("stream", "elementwise", 100.0, 10.0)


@given(
    st.lists(st.tuples(st.floats(1, 1e5), st.floats(0, 2.5), st.integers(1, 9)), min_size=1),
)
def test_the_mean_draw_at_the_chosen_clock_is_at_most_the_limit(
    kernels: list[tuple[float, float, int]],
) -> None:
    times, powers = (np.array([[kernel[i]] for kernel in kernels]) for i in (0, 1))
    counts = np.array([kernel[2] for kernel in kernels])
    load = load_of(times, powers, counts)
    clock = float(clock_shares(load)[0])
    energy = total = 0.0
    for time, power, count in kernels:
        slower = time / clock if power else time
        total += count * slower
        energy += count * slower * (power * clock**EXPONENT if power else STREAMING)
    assert MIN_CLOCK <= clock <= 1.0
    if clock == 1.0:
        assert energy <= total * (1 + 1e-9)
        assert draws(load)[0] == pytest.approx(energy / total)
    else:
        assert energy == pytest.approx(total, rel=1e-4)


def test_products_take_longer_and_the_rest_does_not() -> None:
    first, second = GRAPH.ops
    priced = within_power(Priced(GRAPH, "h100", {first: (PRODUCT,), second: (STREAM,)}))
    assert priced.power is not None
    assert priced.kernels[second] == (STREAM,)
    (slower,) = priced.kernels[first]
    clock = priced.power.clock
    assert clock < 1.0
    assert (slower.time, slower.spread) == (PRODUCT.time / clock, PRODUCT.spread / clock)
    assert priced.power.added == pytest.approx(slower.time - PRODUCT.time)
    assert "power limit" in slower.formula


def test_more_of_what_streams_leaves_products_more_power() -> None:
    times, powers = np.array([[900.0] * 3, [0.0, 300.0, 9000.0]]), np.array([[1.3] * 3, [0.0] * 3])
    low, middle, high = clock_shares(load_of(times, powers, np.ones(2, np.int64)))
    assert low == pytest.approx(1.3 ** (-1 / EXPONENT), rel=1e-5)
    assert low < middle < high == 1.0


def test_a_step_without_known_draws_is_returned_as_it_is() -> None:
    priced = Priced(GRAPH, "h100", {GRAPH.ops[0]: (STREAM,)})
    assert within_power(priced) is priced
    assert slow_down(STREAM, 0.5) is STREAM
