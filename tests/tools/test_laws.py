"""Laws are disabled one by one, and restored."""

from __future__ import annotations

from importlib import import_module

import pytest

from tests.tools.laws import LAWS, disabled

FUNCTIONS = sorted({function for groups in LAWS.values() for group in groups for function in group})


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_law_is_disabled_and_restored(function: str) -> None:
    module, _, name = function.rpartition(".")
    original = getattr(import_module(module), name)
    with disabled([function]):
        assert not getattr(import_module(module), name)(object())
    assert getattr(import_module(module), name) is original
