"""A sample of the model zoo; ``make zoo`` examines all of it."""

from __future__ import annotations

import pytest

SAMPLE = ("resnet18", "timm/deit3", "hf/bert", "hf/gpt2")


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_a_model_is_captured_priced_executed_and_resized(name: str) -> None:
    from tests.zoo.examine import examine

    found = examine(name)
    assert (found.captured, found.unknown) == ("yes", {})
    assert (found.resized, found.executed) == ("equal", "equal")
