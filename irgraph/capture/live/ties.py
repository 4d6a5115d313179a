"""Parameters that may have been shared before a model was moved to meta, which unties them."""

from __future__ import annotations

from collections.abc import Iterator

from irgraph.capture.common.torch_object import Torch

UNTIED = (
    "{} and {} have the same shape, and the model was on meta before the capture: torch unties "
    "shared parameters on the way there. If they are one parameter in the program, move the model "
    "within irgraph.capturing() or FILE.py:NAME, or capture the module with example inputs"
)


def possible_ties(model: Torch) -> list[str]:
    """Return a sentence for each pair of a model's parameters on meta that may have been one.

    These are the parameters that a model of transformers declares as tied, and the weights of an
    embedding and of a linear layer with the same shape.
    """
    if model is None:
        return []
    parameters = dict(model.named_parameters(remove_duplicate=False))
    pairs = {**dict(_tie_candidates(model)), **dict(_declared_ties(model))}
    return [
        UNTIED.format(*pair)
        for pair in pairs.items()
        if all(name in parameters and parameters[name].is_meta for name in pair)
        and parameters[pair[0]] is not parameters[pair[1]]
    ]


def _declared_ties(model: Torch) -> Iterator[tuple[str, str]]:
    """Yield the ties that a model of transformers declares: the tied parameter and its source."""
    keys = getattr(model, "_tied_weights_keys", None)
    if isinstance(keys, dict) and getattr(model.config, "tie_word_embeddings", False):
        yield from keys.items()


def _tie_candidates(model: Torch) -> Iterator[tuple[str, str]]:
    """Yield the weights of the last linear layer and the first embedding of one shape."""
    import torch

    first: dict[tuple[int, ...], str] = {}
    for path, module in model.named_modules():
        if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)):
            first.setdefault(tuple(module.weight.shape), f"{path}.weight")
        elif isinstance(module, torch.nn.Linear) and tuple(module.weight.shape) in first:
            yield f"{path}.weight", first[tuple(module.weight.shape)]
