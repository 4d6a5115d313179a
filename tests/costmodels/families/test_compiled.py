"""What a kernel that Inductor generates moves."""

from __future__ import annotations

import pytest

from costmodels.formulas.elements import streaming
from irgraph.ir.op import Op
from tests.costmodels.families.helpers import call, kernels, machine, tensor

X, BIAS, SUM = tensor("x", 4096, 512), tensor("c", 512), tensor("s", 4096, 512)
Y = tensor("y", 4096, 512)
ADD, RELU = Op("aten.add", (X, BIAS), (SUM,)), Op("aten.relu", (SUM,), (Y,))


def fused(*body: Op, takes: tuple[object, ...], gives: tuple[object, ...], **named: object) -> Op:
    return Op("inductor.kernel", takes, gives, attributes=named, body=body)  # type: ignore[arg-type]


def test_what_lies_between_ops_is_not_moved() -> None:
    (kernel,) = kernels(fused(ADD, RELU, takes=(X, BIAS), gives=(Y,)), machine())
    big = 4096 * 512 * 4
    assert kernel.time == pytest.approx(streaming(machine(), 2 * big + 512 * 4))
    (kept,) = kernels(fused(ADD, RELU, takes=(X, BIAS), gives=(SUM, Y)), machine())
    assert kept.time == pytest.approx(streaming(machine(), 3 * big + 512 * 4))


def test_a_lookup_reads_the_rows_that_it_returns() -> None:
    table, rows = tensor("t", 1_000_000, 64), tensor("r", 256, dtype="i64")
    found = call("aten.embedding", table, rows, out=(256, 64))
    (made,) = found.outputs
    (kernel,) = kernels(fused(found, takes=(table, rows), gives=(made,)), machine())
    assert kernel.time == pytest.approx(streaming(machine(), 2 * 256 * 64 * 4 + 256 * 8))


def test_a_further_launch_passes_over_the_largest_operand_again() -> None:
    first, again = kernels(fused(ADD, takes=(X, BIAS), gives=(SUM,), launches=2), machine())
    assert again.time == pytest.approx(streaming(machine(), 4096 * 512 * 4))
    assert first.time > again.time
