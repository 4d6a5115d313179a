"""A trained model's answer for a kernel does not depend on what else is asked."""

from __future__ import annotations

import numpy as np
import pytest

from costmodels.devices.library import load_device
from costmodels.learned.batch_invariant import exact_forward, exact_joint_forward, exact_layers
from costmodels.learned.correctors import shipped_corrections
from costmodels.learned.infer import estimate, forward
from costmodels.learned.weights import load_shipped, shipped_models


@pytest.mark.parametrize("family", shipped_models())
def test_whole_numbers_give_the_networks_answer(family: str) -> None:
    weights = load_shipped(family)
    inputs = np.random.default_rng(1).standard_normal((len(weights.mean), 300)).astype(np.float32)
    exact = exact_forward(exact_layers(weights.layers), inputs)
    np.testing.assert_allclose(exact, forward(weights.layers, inputs), rtol=1e-4, atol=2e-5)
    alone = exact_forward(exact_layers(weights.layers), inputs[:, 77:78])
    assert (alone[:, :, 0] == exact[:, :, 77]).all()


def test_nothing_that_counts_is_left_out() -> None:
    """Neighbours that are alike leave out other parts of a network than strangers do."""
    layers = exact_layers(load_shipped("gemm").layers)
    inputs = np.random.default_rng(2).standard_normal((layers[0].weights.shape[2], 40))
    alike = (inputs[:, :1] + 0.01 * inputs).astype(np.float32)
    for each in (alike, inputs.astype(np.float32)):
        values = np.broadcast_to(each.astype(np.float64), (len(layers[0].weights), *each.shape))
        for number, layer in enumerate(layers):
            values = layer.weights @ np.rint(values * layer.up) * layer.down + layer.bias
            values = np.clip(values, 0.0, 128.0) if number < len(layers) - 1 else values
        assert (exact_forward(layers, each) == values.astype(np.float32)).all()


@pytest.mark.parametrize("rows", [1, 2, 700])
def test_equal_inputs_are_evaluated_once_with_the_same_answers(rows: int) -> None:
    source = np.random.default_rng(rows)
    models = {model.family: model for model in shipped_corrections("h100-80gb-hbm3").values()}
    for model in models.values():
        layers = exact_layers(model.layers)
        count = layers[0].weights.shape[2]
        inputs = np.repeat(source.standard_normal((count, 1)), rows, 1).astype(np.float32)
        positions = np.flatnonzero(source.random(count) < 0.2)
        inputs[positions] = source.standard_normal((len(positions), rows))
        joint = exact_joint_forward(layers, inputs[:, 0], positions, inputs[positions])
        assert (joint == exact_forward(layers, inputs)).all()


def test_sums_are_exact() -> None:
    for layer in exact_layers(load_shipped("gemm").layers):
        assert (layer.weights == np.rint(layer.weights)).all()
        assert np.abs(layer.weights).sum(-1).max() * 128 * layer.up < 2**53


def test_a_product_alone_takes_what_it_takes_among_others() -> None:
    weights = load_shipped("gemm")
    device = weights.family.campaign.hardware([load_device("v100")])
    sides = 2.0 ** np.random.default_rng(0).uniform(1, 12, (3, 500))
    sizes = dict(zip(("m", "n", "k"), sides.astype(int).astype(np.float32), strict=True))
    sizes |= {"batch": np.ones(500, np.float32), "op": np.zeros(500, np.float32)}
    many = estimate(weights, sizes, device)
    for at in range(0, 500, 50):
        one = estimate(weights, {name: c[at : at + 1] for name, c in sizes.items()}, device)
        assert one.time[0] == many.time[at] and one.width[0] == many.width[at]
