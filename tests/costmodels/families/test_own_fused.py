"""What the ops of our own passes launch."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from tests.costmodels.families.helpers import kernels, machine, total


def tensor(name: str, *shape: int, buffer: str = "", offset: int = 0) -> Tensor:
    return Tensor(name, "f32", shape, buffer or name, offset=offset)


def batched(first: list[Tensor], second: list[Tensor], bias: tuple[Tensor, ...] = ()) -> Op:
    """Return several products as one."""
    sizes = (first[0].shape[0], second[0].shape[1])
    made = tuple(tensor(f"y{k}", *sizes) for k in range(len(first)))
    operands = (tuple(first), tuple(second))
    return Op("irgraph.batched_gemm", operands, (made,), {"bias": bias} if bias else {})


def weights(count: int) -> list[Tensor]:
    return [tensor(f"w{k}", 8, 16) for k in range(count)]


def test_factors_that_lie_apart_are_stacked_first() -> None:
    op = batched([tensor(f"x{k}", 4, 8) for k in range(3)], weights(3))
    assert [k.family for k in kernels(op, machine())] == ["concat", "concat", "gemm"]


def test_one_factor_that_all_share_is_not_copied() -> None:
    op = batched([tensor("x", 4, 8)] * 3, weights(3))
    found = kernels(op, machine())
    assert [k.family for k in found] == ["concat", "gemm"]
    assert found[1].name.startswith("gemm 3 x 4x16x8")


def test_factors_at_equal_distances_are_not_copied() -> None:
    first = [tensor(f"x{k}", 4, 8, buffer="x", offset=128 * k) for k in range(3)]
    second = [tensor(f"w{k}", 8, 16, buffer="w", offset=512 * k) for k in range(3)]
    assert [k.family for k in kernels(batched(first, second), machine())] == ["gemm"]
    uneven = [*second[:2], replace(second[2], offset=2048)]
    assert [k.family for k in kernels(batched(first, uneven), machine())] == ["concat", "gemm"]


def test_biases_are_stacked_and_spread_over_the_results() -> None:
    biases = tuple(tensor(f"c{k}", 16) for k in range(3))
    op = batched([tensor("x", 4, 8)] * 3, weights(3), biases)
    assert [k.family for k in kernels(op, machine())] == ["concat", "concat", "elementwise", "gemm"]


def test_a_gelu_that_adds_a_bias_takes_the_time_of_a_gelu_and_saves_the_sum() -> None:
    on, big, bias = machine(), (4096, 3072), tensor("c", 3072)
    x, y, g, s = (tensor(name, *big) for name in "xygs")
    plain = Op("aten.gelu", (x,), (y,))
    fused = Op("irgraph.bias_gelu", (x, bias), (y,))
    assert kernels(fused, on)[0].time == kernels(plain, on)[0].time
    alone = Op("aten.gelu_backward", (g, x), (s,))
    both = Op("irgraph.bias_gelu_backward", (g, x, bias), (s, tensor("d", 3072)))
    first, second = kernels(both, on)
    assert (first.time, second.name) == (kernels(alone, on)[0].time, "sums 64x3072")
    added = Op("aten.sum", (s,), (tensor("d", 1, 3072),), {"dim": (0,), "keepdim": True})
    assert second.time < 0.5 * sum(kernel.time for kernel in kernels(added, on))


def test_large_products_lose_by_the_copies_and_small_ones_gain() -> None:
    on = machine()

    def both(size: int) -> tuple[float, float]:
        first = [tensor("x", size, size)] * 3
        second = [tensor(f"w{k}", size, size) for k in range(3)]
        one = Op("aten.mm", (first[0], second[0]), (tensor("y", size, size),))
        return total(kernels(batched(first, second), on)), 3 * total(kernels(one, on))

    together, apart = both(2048)
    assert together > apart
    together, apart = both(64)
    assert together < apart


def test_a_sum_and_its_norm_take_less_than_two_calls() -> None:
    x, y, s, n = (tensor(name, 2048, 256) for name in "xysn")
    mean, scale = tensor("m", 2048, 1), tensor("r", 2048, 1)
    shape = {"normalized_shape": (256,)}
    fused = Op("irgraph.add_layer_norm", (x, y), (s, n, mean, scale), shape)
    add = Op("aten.add", (x, y), (s,))
    norm = Op("aten.native_layer_norm", (s,), (n, mean, scale), shape)
    on = machine()
    assert total(kernels(fused, on)) < total(kernels(add, on)) + total(kernels(norm, on))
    assert total(kernels(fused, on)) >= on.stream(4 * x.nbytes)


def test_a_sum_and_its_norm_take_no_less_than_the_norm_of_narrow_rows() -> None:
    x, y, s, n = (tensor(name, 100_000, 8) for name in "xysn")
    norm = Op("aten.native_layer_norm", (s,), (n,))
    fused = Op("irgraph.add_layer_norm", (x, y), (s, n))
    assert total(kernels(fused, machine())) == total(kernels(norm, machine()))


def test_a_fused_step_moves_each_byte_once() -> None:
    params, grads, averages, squares = (
        tuple(tensor(f"{name}{k}", 1000, 1000) for k in range(3)) for name in "pgmv"
    )
    written = frozenset(t.name for t in (*params, *averages, *squares))
    op = Op("irgraph.fused_adam", (params, grads, averages, squares), (), {}, written)
    on = machine()
    assert total(kernels(op, on)) >= on.stream(7 * 3 * params[0].nbytes)
    assert total(kernels(op, on)) < 1.3 * on.stream(7 * 3 * params[0].nbytes)


def test_gates_and_rotations_read_and_write_each_tensor_once() -> None:
    on, (x, y, z) = machine(), (tensor(name, 4096, 4096) for name in "xyz")
    added = total(kernels(Op("aten.add", (x, y), (z,)), on))
    gated = total(kernels(Op("irgraph.silu_mul", (x, y), (z,)), on))
    apart = Op("aten.silu", (x,), (z,)), Op("aten.mul", (z, y), (tensor("u", 4096, 4096),))
    assert gated == pytest.approx(added, rel=0.02)
    assert gated < 0.7 * sum(total(kernels(op, on)) for op in apart)
    angles = tuple(tensor(name, 1, 4096) for name in ("cos", "sin"))
    negated = total(kernels(Op("aten.neg", (x,), (z,)), on))
    rotated = total(kernels(Op("irgraph.rotary", (x, *angles), (z,)), on))
    assert rotated == pytest.approx(negated, rel=0.1)
