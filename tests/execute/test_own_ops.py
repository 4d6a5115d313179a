"""Our fused ops against torch's autograd."""

from __future__ import annotations

import inspect

import pytest
import torch

from irgraph.execute.fused.attention import (
    efficient_attention,
    efficient_attention_backward,
    flash_attention,
    flash_attention_backward,
)
from irgraph.ir.schema import parse_schema
from irgraph.ir.tf32 import PLAIN
from irgraph.ir.torch_schemas.custom_ops import custom_ops
from irgraph.ir.torch_schemas.registration import register_custom_ops
from irgraph.ops.custom import _load
from irgraph.ops.kinds.own_activations import bias_gelu, bias_gelu_backward
from irgraph.ops.kinds.own_lookups import (
    batched_embedding,
    batched_embedding_backward,
    batched_embedding_sgd,
)
from irgraph.ops.kinds.own_norms import add_layer_norm
from irgraph.ops.kinds.own_optimizers import fused_adam
from irgraph.ops.kinds.own_products import addmm_relu, batched_gemm, linear_relu, mm_relu_backward
from irgraph.ops.kinds.own_tf32 import round_to_tf32


def test_rounding_to_tf32_keeps_ten_bits_and_takes_the_nearest() -> None:
    step = 2.0**-10
    pairs = [
        (1.0, 1.0),
        (1 + step / 2, 1.0),
        (1 + 3 * step / 2, 1 + 2 * step),
        (1 + step * 0.51, 1 + step),
        (-1 - step * 0.51, -1 - step),
        (0.0, 0.0),
        (float("inf"), float("inf")),
        (3e-39, 3e-39),
    ]
    given, wanted = (torch.tensor(side) for side in zip(*pairs, strict=True))
    assert torch.allclose(round_to_tf32(given), wanted, rtol=0, atol=2.0**-137)
    assert torch.equal(round_to_tf32(given)[:7], wanted[:7])
    assert round_to_tf32(torch.tensor([float("nan")])).isnan().all()
    drawn = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    rounded = round_to_tf32(drawn)
    assert ((rounded - drawn).abs() <= 2.0**-11 * drawn.abs()).all()
    assert not (rounded.view(torch.int32) & 0x1FFF).any()


def test_products_in_tf32_round_both_factors_and_nothing_else() -> None:
    made = torch.Generator().manual_seed(0)
    x, w, c = (torch.randn(8, 8, generator=made) for _ in range(3))
    a, b = round_to_tf32(x), round_to_tf32(w)
    given = {
        "linear": ({"input": x, "weight": w, "bias": c[0]}, a @ b.t() + c[0]),
        "addmm": ({"self": c, "mat1": x, "mat2": w, "beta": 2, "alpha": 3}, 2 * c + 3 * (a @ b)),
        "mm": ({"self": x, "mat2": w}, a @ b),
        "bmm": ({"self": x[None], "mat2": w[None]}, (a @ b)[None]),
        "baddbmm": ({"self": c[None], "batch1": x[None], "batch2": w[None]}, (c + a @ b)[None]),
    }
    for name, (values, wanted) in given.items():
        found = custom_ops()[f"irgraph.{name}_tf32"].reference(**values)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert ((a @ b - x @ w).abs().max() / (x @ w).abs().max()) > 1e-4


def tables() -> tuple[list, list, list, list]:
    """Return two tables, their indices, offsets (an empty bag among them) and index weights."""
    made = torch.Generator().manual_seed(0)
    weights = [torch.rand(rows, 4, generator=made, dtype=torch.float64) for rows in (5, 7)]
    indices = [torch.randint(rows, (9,), generator=made) for rows in (5, 7)]
    offsets = [torch.tensor([0, 2, 2, 8]), torch.tensor([0, 1, 5, 6])]
    shares = [torch.rand(9, generator=made, dtype=torch.float64) for _ in range(2)]
    return weights, indices, offsets, shares


@pytest.mark.parametrize("name", sorted(custom_ops().keys() - PLAIN.keys()))
def test_every_reference_takes_the_arguments_of_its_schema(name: str) -> None:
    custom = custom_ops()[name]
    module = inspect.getclosurevars(custom.reference).nonlocals
    function = _load(**module) if "module" in module else custom.reference
    code = function.__code__
    names = set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    takes_more = code.co_flags & inspect.CO_VARKEYWORDS  # arguments of prices only
    schema = parse_schema(custom.schema)
    assert takes_more or {argument.name for argument in schema.arguments} <= names


@pytest.mark.parametrize("mode", [0, 1])
def test_torch_differentiates_bags_of_several_tables(mode: int) -> None:
    weights, indices, offsets, _ = tables()
    register_custom_ops()
    leaves = [weight.clone().requires_grad_() for weight in weights]
    bags = torch.ops.irgraph.batched_embedding(leaves, indices, offsets, mode=mode)
    grads = [torch.rand_like(bag) for bag in bags]
    gradients = torch.autograd.grad(bags, leaves, grads)
    counts = [len(weight) for weight in weights]
    wanted = batched_embedding_backward(grads, indices, offsets, counts, mode)
    torch.testing.assert_close(gradients, tuple(wanted))
    plain = [weight.clone().requires_grad_() for weight in weights]
    alone = batched_embedding(plain, indices, offsets, mode)
    torch.testing.assert_close(gradients, torch.autograd.grad(alone, plain, grads))


@pytest.mark.parametrize(("mode", "shared"), [(0, False), (1, False), (0, True)])
@pytest.mark.parametrize("sparse", [False, True])
def test_lookups_and_gradients_are_those_of_embedding_bag(
    mode: int, shared: bool, sparse: bool
) -> None:
    weights, indices, offsets, shares = tables()
    given = shares if shared else []
    found = batched_embedding(weights, indices, offsets, mode, given)
    grads = [torch.rand_like(y) for y in found]
    counts = [len(w) for w in weights]
    back = batched_embedding_backward(grads, indices, offsets, counts, mode, sparse, given)
    for k, weight in enumerate(weights):
        leaf = weight.clone().requires_grad_()
        y = torch.nn.functional.embedding_bag(
            indices[k],
            leaf,
            offsets[k],
            mode=("sum", "mean")[mode],
            per_sample_weights=shares[k] if shared else None,
        )
        y.backward(grads[k])
        torch.testing.assert_close(found[k], y.detach())
        torch.testing.assert_close(back[k].to_dense(), leaf.grad)
        assert back[k].is_sparse == sparse


def test_the_last_offset_may_be_included() -> None:
    weights, indices, offsets, _ = tables()
    closed = [torch.cat([o, torch.tensor([9])]) for o in offsets]
    one = batched_embedding(weights, indices, offsets)
    two = batched_embedding(weights, indices, closed, include_last_offset=True)
    counts, grads = [5, 7], [torch.rand(4, 4) for _ in range(2)]
    for a, b in zip(one, two, strict=True):
        assert torch.equal(a, b)
    for a, b in zip(
        batched_embedding_backward(grads, indices, offsets, counts),
        batched_embedding_backward(grads, indices, closed, counts),
        strict=True,
    ):
        assert torch.equal(a, b)


def test_the_update_adds_gradients_where_tables_lie() -> None:
    weights, indices, offsets, _ = tables()
    before = [w.clone() for w in weights]
    grads = [torch.rand(4, 4, dtype=torch.float64) for _ in range(2)]
    batched_embedding_sgd(weights, grads, indices, offsets, alpha=-0.5)
    steps = batched_embedding_backward(grads, indices, offsets, [5, 7])
    for old, new, step in zip(before, weights, steps, strict=True):
        torch.testing.assert_close(new, old - 0.5 * step)


def test_a_maximum_has_no_gradient_here() -> None:
    weights, indices, offsets, _ = tables()
    with pytest.raises(NotImplementedError, match="maximum"):
        batched_embedding_backward(weights, indices, offsets, [5, 7], mode=2)


def test_products_are_cut_off_at_zero() -> None:
    x, w, c = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)
    expected = torch.nn.functional.linear(x, w, c).relu()
    torch.testing.assert_close(linear_relu(x, w, c), expected)
    torch.testing.assert_close(addmm_relu(c, x, w.t()), expected)
    assert (addmm_relu(c, x, w.t(), beta=0, alpha=-1) == (-x @ w.t()).relu()).all()


def test_the_gradient_behind_a_cut_off_product_is_that_of_autograd() -> None:
    x, w, second = (torch.randn(3, 4), torch.randn(5, 4), torch.randn(6, 5))
    h = (x @ w.t()).requires_grad_()
    y = h.relu()
    grad = torch.randn(3, 6)
    (y @ second.t()).backward(grad)
    torch.testing.assert_close(mm_relu_backward(grad, second, y.detach()), h.grad)


@pytest.mark.parametrize("bias", [0, 1, 2])
def test_batched_products_are_the_single_ones(bias: int) -> None:
    first, second = ([torch.randn(3, 4) for _ in range(3)], [torch.randn(4, 5) for _ in range(3)])
    added = [torch.randn(*((5,), (3, 5))[bias - 1]) for _ in range(3)] if bias else []
    expected = [a @ b for a, b in zip(first, second, strict=True)]
    expected = [e + added[k] for k, e in enumerate(expected)] if bias else expected
    for found, one in zip(batched_gemm(first, second, added), expected, strict=True):
        torch.testing.assert_close(found, one)


def test_a_sum_and_its_norm_are_those_of_two_calls() -> None:
    x, y, w, c = torch.randn(3, 4), torch.randn(3, 4), torch.randn(4), torch.randn(4)
    total, norm, mean, scale = add_layer_norm(x, y, [4], w, c, 1e-3)
    assert torch.equal(total, x + y)
    torch.testing.assert_close(norm, torch.nn.functional.layer_norm(x + y, [4], w, c, 1e-3))
    torch.testing.assert_close(mean, (x + y).mean(1, keepdim=True))
    assert scale.shape == mean.shape


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)])
def test_a_gelu_that_adds_a_bias_is_two_calls_in_both_directions(
    shape: tuple[int, ...], approximate: str
) -> None:
    x, c = (torch.randn(*size, requires_grad=True) for size in (shape, (4,)))
    expected = torch.nn.functional.gelu(x + c, approximate=approximate)
    grad = torch.randn(shape)
    wanted = torch.autograd.grad(expected, (x, c), grad)
    torch.testing.assert_close(bias_gelu(x, c, approximate), expected)
    torch.testing.assert_close(
        bias_gelu_backward(grad, x.detach(), c.detach(), approximate), wanted
    )
    register_custom_ops()
    by_torch = torch.ops.irgraph.bias_gelu(x, c, approximate=approximate)
    torch.testing.assert_close(torch.autograd.grad(by_torch, (x, c), grad), wanted)


@pytest.mark.parametrize("decoupled", [False, True])
def test_a_fused_step_is_that_of_torch_s_adam(decoupled: bool) -> None:
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    param = torch.nn.Parameter(torch.randn(5))
    ours, lr, decay = param.detach().clone(), 0.01, 0.1
    optimizer = kind([param], lr=lr, weight_decay=decay, foreach=False)
    average, square = torch.zeros(5), torch.zeros(5)
    for step in range(1, 4):
        param.grad = torch.randn(5)
        optimizer.step()
        corrections, steps = [(1 - 0.999**step) ** 0.5], [-lr / (1 - 0.9**step)]
        extra = {"decay": 1 - lr * decay} if decoupled else {"weight_decay": decay}
        fused_adam(
            [ours],
            [param.grad],
            [average],
            [square],
            1 - 0.9,
            0.999,
            1 - 0.999,
            1e-8,
            corrections,
            steps,
            **extra,
        )
    torch.testing.assert_close(ours, param.detach())


@pytest.mark.parametrize("causal", [False, True])
def test_fused_attention_is_that_of_torch(causal: bool) -> None:
    made = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.rand(2, 3, 5, 4, generator=made, requires_grad=True) for _ in range(3)
    )
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
    grad = torch.rand(expected.shape, generator=made)
    expected.backward(grad)
    with torch.no_grad():
        out, sums, seed, _ = efficient_attention(query, key, value, None, True, is_causal=causal)
        grads = efficient_attention_backward(
            grad, query, key, value, None, seed, 0.0, [True, True, True, False], causal
        )
    torch.testing.assert_close(out, expected.detach())
    assert sums.shape == (2, 3, 32)
    assert grads[3] is None
    for found, tensor in zip(grads, (query, key, value), strict=False):
        torch.testing.assert_close(found, tensor.grad)


@pytest.mark.parametrize("causal", [False, True])
def test_flash_attention_is_that_of_torch_with_shared_heads(causal: bool) -> None:
    made = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.rand(2, heads, 5, 8, generator=made, dtype=torch.float64, requires_grad=True)
        for heads in (6, 2, 2)
    )
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=causal, scale=0.3, enable_gqa=True
    )
    grad = torch.rand(expected.shape, generator=made, dtype=torch.float64)
    expected.backward(grad)
    with torch.no_grad():
        out, sums, _, _, state, _, _ = flash_attention(query, key, value, 0.0, causal, scale=0.3)
        grads = flash_attention_backward(grad, query, key, value, 0.0, causal, state, scale=0.3)
    torch.testing.assert_close(out, expected.detach())
    assert (sums.shape, state.shape) == ((2, 6, 5), (2,))
    for found, tensor in zip(grads, (query, key, value), strict=True):
        torch.testing.assert_close(found, tensor.grad)


def test_fused_attention_drops_the_same_backward() -> None:
    one = torch.ones(1, 1, 32, 4)
    out, _, seed, _ = efficient_attention(one, one, one, None, False, dropout_p=0.5)
    grads = efficient_attention_backward(
        one, one, one, one, None, seed, 0.5, [False, False, True, False]
    )
    assert out.sum() > 0 and not torch.equal(out, one)
    torch.testing.assert_close(grads[2].sum(), out.sum())


def test_a_gate_and_a_rotation_have_the_gradients_of_torch() -> None:
    register_custom_ops()
    gate, up, grad = (torch.randn(3, 6, dtype=torch.float64) for _ in range(3))
    angles = torch.randn(1, 6, dtype=torch.float64)
    for ours, theirs, count in (
        (torch.ops.irgraph.silu_mul, lambda a, b: torch.nn.functional.silu(a) * b, 2),
        (
            lambda a: torch.ops.irgraph.rotary(a, angles.cos(), angles.sin()),
            lambda a: a * angles.cos() + torch.cat((-a[:, 3:], a[:, :3]), dim=-1) * angles.sin(),
            1,
        ),
    ):
        leaves = [tensor.clone().requires_grad_() for tensor in (gate, up)[:count]]
        results = [function(*leaves) for function in (ours, theirs)]
        torch.testing.assert_close(*results)
        gradients = [torch.autograd.grad(result, leaves, grad) for result in results]
        torch.testing.assert_close(*gradients)
