"""Networks that are trained in parallel: one architecture, several learning rates and seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.learnable.hardware import Floats
from costmodels.learned.files import Layers
from costmodels.training.network import network, plain_layers

RATES = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2)
"""Learning rates of Table II; ten times as high for SGD."""
DECAY, BATCH = 1e-4, 256
"""Weight decay of the paper's program, and rows per update."""
STRIDE = 100
"""Updates per call of the compiled function."""


class Rows(Struct, frozen=True):
    """Natural logarithms of sizes (rows, sizes) and times (rows,), and masks of the data splits."""

    inputs: Floats
    times: Floats
    train: NDArray[np.bool_]
    validation: NDArray[np.bool_]
    held_out: NDArray[np.bool_]


class Nets:
    """The networks of one architecture; dropped networks are freed.

    Args:
        point: ``layers``, ``width`` and ``optimizer`` (``adam`` or ``sgd``).
        seeds: initial weights for each learning rate.
        rows: training rows, and further rows to predict.
    """

    def __init__(self, point: Mapping[str, Any], seeds: int, rows: Rows) -> None:
        import jax
        import jax.numpy as jnp
        import optax

        adam = point["optimizer"] == "adam"
        self._rates = np.repeat(np.asarray(RATES) * (1 if adam else 10), seeds)
        self._module = network(point["width"], point["layers"], 1, from_zero=False)
        optimizer = optax.chain(
            optax.clip_by_global_norm(1.0),
            optax.add_decayed_weights(DECAY),
            optax.scale_by_adam() if adam else optax.identity(),
        )
        self._all_inputs = jnp.asarray(rows.inputs)
        training_data = jnp.asarray(rows.inputs[rows.train]), jnp.asarray(rows.times[rows.train])
        keys = jax.random.split(jax.random.key(0), len(self._rates))
        weights = jax.vmap(lambda key: self._module.init(key, self._all_inputs[:1]))(keys)
        self._state = weights, jax.vmap(optimizer.init)(weights)
        advance = _advance(self._module, optimizer, *training_data)
        self._run = jax.jit(jax.vmap(advance, (0, 0, None)), donate_argnums=0)
        self._updates_done = 0

    def train(self, updates: int) -> None:
        """Train every network for ``updates`` more updates."""
        import jax
        import jax.numpy as jnp

        rates = jnp.asarray(self._rates)
        for start in range(self._updates_done, self._updates_done + updates, STRIDE):
            count = min(STRIDE, self._updates_done + updates - start)
            keys = jax.random.split(jax.random.fold_in(jax.random.key(1), start), count)
            self._state = self._run(self._state, rates, keys)
        self._updates_done += updates

    def predict(self) -> Floats:
        """Return logarithms of the times of all rows, (nets, rows)."""
        import jax

        predicted = jax.vmap(lambda w: self._module.apply(w, self._all_inputs)[:, 0])(
            self._state[0]
        )
        return np.asarray(predicted, np.float32)

    def select(self, nets: Sequence[int] | NDArray[np.intp]) -> None:
        """Retain the networks with these indices, in this order; free the others."""
        import jax

        index = np.asarray(nets)
        self._rates = self._rates[index]
        self._state = jax.tree.map(lambda leaf: leaf[index], self._state)

    def layers(self, net: int) -> Layers:
        """Return the weights (1, out, in) and biases (1, out) of each layer of a net."""
        import jax

        single = jax.tree.map(lambda leaf: leaf[net : net + 1], self._state[0])
        return plain_layers(single["params"])

    def rate(self, net: int) -> float:
        """Return a net's learning rate."""
        return float(self._rates[net])


def _advance(module: Any, optimizer: Any, inputs: Any, times: Any) -> Any:  # noqa: ANN401  (JAX)
    """Return the training function of one net: state, rate and a key per update to a new state."""
    import jax
    import jax.numpy as jnp

    def loss(weights: Any, index: Any) -> Any:  # noqa: ANN401
        return jnp.mean((module.apply(weights, inputs[index])[:, 0] - times[index]) ** 2)

    def advance(state: Any, rate: Any, keys: Any) -> Any:  # noqa: ANN401
        def step(carry: Any, key: Any) -> Any:  # noqa: ANN401
            index = jax.random.randint(key, (BATCH,), 0, len(times))
            gradient = jax.grad(loss)(carry[0], index)
            change, memory = optimizer.update(gradient, carry[1], carry[0])
            weights = jax.tree.map(lambda w, c: w - rate * c, carry[0], change)
            return (weights, memory), None

        return jax.lax.scan(step, state, keys)[0]

    return advance
