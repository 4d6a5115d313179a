"""Steps made of a module and example inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from irgraph.capture.live import capture
from irgraph.text import IrgraphError


class Tied(torch.nn.Module):
    """Words in, words out, by one table; returns the loss if it is given labels."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(9, 4)
        self.head = torch.nn.Linear(4, 9, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: Any, labels: Any = None) -> Any:
        scores = self.head(self.words(words))
        return scores if labels is None else torch.nn.functional.cross_entropy(scores, labels)


WORDS = torch.arange(6) % 9


def test_a_module_is_trained_with_its_parameters_tied() -> None:
    module = Tied()
    given = {"words": WORDS, "labels": WORDS}
    graph = capture(module, given, loss=lambda made: made, optimizer=torch.optim.AdamW).graph
    assert graph.dims == {"B": 6}
    assert [d.label for d in graph.tensors if d.role == "param"] == ["words.weight"]
    assert {op.phase for op in graph.leaves()} == {"forward", "backward", "optimizer"}
    assert module.words.weight.device.type == "cpu"
    assert graph.returned is not None
    assert len(graph.returned) == 1


def test_a_module_without_a_loss_is_called() -> None:
    for given in (WORDS, (WORDS,), [WORDS]):
        graph = capture(Tied(), given).graph
        assert {op.phase for op in graph.leaves()} == {"forward"}


def test_inputs_of_different_sizes_have_no_batch() -> None:
    graph = capture(torch.nn.Bilinear(4, 4, 2), (torch.rand(3, 4), torch.rand(3, 4))).graph
    assert graph.dims == {"B": 3}
    graph = capture(torch.nn.PairwiseDistance(), (torch.rand(3, 4), torch.rand(1, 4))).graph
    assert graph.dims == {}


def test_a_module_without_inputs_is_refused() -> None:
    with pytest.raises(IrgraphError, match="example inputs"):
        capture(Tied())


class Packed(torch.nn.Module):
    """A recurrent layer over packed sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.LSTM(4, 4)

    def forward(self, words: Any) -> Any:
        return self.layer(words)[0].data.sum()


def test_packed_sequences_are_resized_as_sequences() -> None:
    words = torch.nn.utils.rnn.pack_sequence([torch.rand(3, 4)] * 2)
    graph = capture(Packed(), words).graph
    assert graph.dims == {"B": 2}
    (given,) = (d.tensor for d in graph.tensors if d.tensor.device == "cpu" and d.tensor.rank == 2)
    assert str(given.shape[0]) == "3*B"
