"""Recurrent operators: long short-term memory, gated recurrent units, plain layers.

ONNX stores the gates of a layer in another order than torch. A weight without values in the model
is assumed to have torch's order already (``reordered``); any other weight is reordered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.onnx.bind import Convert, Floats, Ints, UnsupportedError

GATES: Mapping[str, tuple[int, ...]] = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
"""Index of each of torch's gates among ONNX's gates, by operator."""

_STANDARD = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


def reorder_gates(op: str, tensor: Torch, axis: int) -> Torch:
    """Return a weight, or biases, with their gates in torch's order along an axis."""
    count = len(GATES[op])
    if count == 1:
        return tensor
    parts = tensor.chunk(count * (1 if tensor.ndim == 3 else 2), axis)
    places = [i + start for start in range(0, len(parts), count) for i in GATES[op]]
    return torch.cat([parts[i] for i in places], axis)


def _recurrent(op: str) -> Convert:
    """Return the converter of an operator."""

    def convert(
        x: Torch,
        w: Torch,
        r: Torch,
        b: Torch = None,
        sequence_lens: Ints = (),
        initial_h: Torch = None,
        initial_c: Torch = None,
        p: Torch = None,
        *,
        activation_alpha: Floats = (),
        activation_beta: Floats = (),
        activations: Sequence[str] = (),
        clip: float = 0.0,
        direction: str = "forward",
        hidden_size: int = 0,
        input_forget: int = 0,
        layout: int = 0,
        linear_before_reset: int = 0,
        reordered: int = 0,
    ) -> tuple[Torch, ...]:
        rectified = op == "RNN" and bool(activations) and set(activations) == {"Relu"}
        _refuse(
            {
                "its attribute clip": clip,
                "its attribute input_forget": input_forget,
                "its attribute linear_before_reset = 0": op == "GRU" and not linear_before_reset,
                "its attribute linear_before_reset": op != "GRU" and linear_before_reset,
                "its input P (peepholes)": p is not None,
                "its input initial_c": op != "LSTM" and initial_c is not None,
                "its attribute activation_alpha": activation_alpha,
                "its attribute activation_beta": activation_beta,
                f"its attribute activations = {list(activations)}": not rectified
                and list(activations) not in ([], [*_STANDARD[op]], [*_STANDARD[op]] * 2),
            }
        )
        layer = _Layer(op, w, r, b, direction, bool(layout), bool(reordered))
        x = layer.prepare_input(x, sequence_lens)
        state = layer.initial_state(initial_h, x)
        if op == "LSTM":
            state = [state, layer.initial_state(initial_c, x)]
        name = {"RNN": "rnn_relu" if rectified else "rnn_tanh"}.get(op, op.lower())
        return layer.restore_layout(
            *getattr(torch.ops.aten, name).input(x, state, *layer.other_arguments())
        )

    return convert


def _refuse(unsupported: Mapping[str, Any]) -> None:
    for form, value in unsupported.items():
        if value:
            raise UnsupportedError(f"{form} is not supported")


class _Layer:
    """A recurrent layer with its weights in torch's form."""

    def __init__(
        self,
        op: str,
        w: Torch,
        r: Torch,
        b: Torch,
        direction: str,
        batch_first: bool,
        reordered: bool,
    ) -> None:
        weights = [w, r] if b is None else [w, r, b]
        if not reordered:
            weights = [reorder_gates(op, tensor, 1) for tensor in weights]
        self._weights = [part for i in range(len(w)) for part in _direction_weights(weights, i)]
        self._biased, self._hidden, self._directions = b is not None, r.shape[-1], len(w)
        self._backwards, self._batch_first = direction == "reverse", batch_first

    def prepare_input(self, x: Torch, lengths: Ints) -> Torch:
        """Return the input with its steps along the first axis, in processing order."""
        x = x.transpose(0, 1) if self._batch_first else x
        if any(length != x.shape[0] for length in lengths):
            raise UnsupportedError(f"its input sequence_lens = {list(lengths)} is not supported")
        return x.flip(0) if self._backwards else x

    def initial_state(self, initial: Torch, x: Torch) -> Torch:
        """Return the layer's initial state, zeros if ``initial`` is ``None``."""
        if initial is None:
            return x.new_zeros(self._directions, x.shape[1], self._hidden)
        return initial.transpose(0, 1) if self._batch_first else initial

    def other_arguments(self) -> tuple[Any, ...]:
        """Return the remaining arguments of torch's call."""
        return self._weights, self._biased, 1, 0.0, False, self._directions == 2, False

    def restore_layout(self, out: Torch, *states: Torch) -> tuple[Torch, ...]:
        """Return the results in ONNX's layout."""
        out = out.flip(0) if self._backwards else out
        out = out.unflatten(2, (self._directions, self._hidden))
        if self._batch_first:
            return (out.transpose(0, 1), *(state.transpose(0, 1) for state in states))
        return (out.transpose(1, 2), *states)


def _direction_weights(weights: Sequence[Torch], number: int) -> list[Torch]:
    """Return the weights of one direction, with separate biases for input and state."""
    w, r, *biases = (tensor[number] for tensor in weights)
    return [w, r, *(half for bias in biases for half in bias.chunk(2))]


RECURRENT: Mapping[str, Convert] = {op: _recurrent(op) for op in GATES}
