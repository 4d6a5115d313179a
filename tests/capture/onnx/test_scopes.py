"""What exporters note of scopes is text, whatever a file puts there."""

from __future__ import annotations

import warnings

import pytest

from irgraph.capture.onnx.model import _module

KEY = "pkg.torch.onnx.name_scopes"


@pytest.mark.parametrize(
    ("noted", "module"),
    [
        ("['', 'tower', 'tower.0']", "tower"),
        ("['a']", ""),
        ("'a'", ""),
        ("[1, 2]", ""),
        ("[['a'], 'b']", ""),
        ("{1: 2}", ""),
        ("[b'a', 'b']", ""),
        ("[" * 100_000, ""),
        ("9" * 5000, ""),
        ("-" * 5000 + "1", ""),
        ("['a' * 10**9, 'b']", ""),
        ("\0", ""),
        ("__import__('os').system('touch ran')", ""),
        (r"['\ud800', 'b']", "?"),
        ("['\x1b[2J', 'b']", "\x1b[2J"),
        ("['\\\x1b', 'b']", "\\\x1b"),
    ],
)
def test_a_module_is_a_text(noted: str, module: str) -> None:
    with warnings.catch_warnings(action="error"):
        assert _module("node", {KEY: noted}) == module
