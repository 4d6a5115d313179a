"""Training."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodels.learnable.settings import Architecture
from costmodels.learned.weights import Weights
from costmodels.training.network import network

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def learned(made_up: Path) -> Callable[..., Weights]:
    """Return a function that trains softmax on made-up kernels from a seed, once or again."""
    from costmodels.learnable.settings import Settings
    from costmodels.training.recipe import learn

    small = Architecture(width=16, depth=2, members=2)

    @cache
    def run(seed: int, again: bool = False) -> Weights:
        settings = Settings(seed=seed, steps=400, batch=128, rate=1e-2, architecture=small)
        return learn("softmax", made_up, settings)

    return run


def test_a_seed_decides_the_weights(learned: Callable[..., Weights]) -> None:
    one, two, other = learned(0), learned(0, again=True), learned(1)
    assert one is not two
    for (a, _), (b, _) in zip(one.layers, two.layers, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(one.layers[0][0], other.layers[0][0])


def test_made_up_kernels_are_learned(learned: Callable[..., Weights]) -> None:
    made = learned(0).made
    for parts in made["held_out_pct"].values():
        assert parts["all"]["gmae"] < 5
        assert parts["all"]["coverage"] > 75
    assert made["rows"] == 640


def test_numpy_and_flax_agree(learned: Callable[..., Weights]) -> None:
    import jax.numpy as jnp

    from costmodels.learned.infer import forward

    weights = learned(0)
    inputs = np.random.default_rng(0).normal(size=(len(weights.low), 50)).astype(np.float32)
    module = network(16, 2, 3)
    ours = forward(weights.layers, inputs)
    for member in range(2):
        params: dict[str, Any] = {
            f"layers_{2 * i}": {"kernel": jnp.asarray(w[member].T), "bias": jnp.asarray(b[member])}
            for i, (w, b) in enumerate(weights.layers)
        }
        theirs = module.apply({"params": params}, jnp.asarray(inputs.T))
        np.testing.assert_allclose(ours[member].T, np.asarray(theirs), rtol=1e-4, atol=1e-4)
