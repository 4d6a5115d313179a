"""``irgraph check --program``: a resized model beside its program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

PROGRAM = """
import torch

def train(batch, device):
    model = torch.nn.Linear(8, 8).to(device)
    x = torch.rand(batch, 8)

    def step():
        y = model(x.to(device))
        if batch == 3:
            y = y.sigmoid()
        elif batch == 5:
            raise ValueError("no batch of 5")
        return y.relu()

    return step
"""


def test_a_resize_is_compared_with_the_program(run: Callable, tmp_path: Path) -> None:
    file, first = tmp_path / "p.py", tmp_path / "a.ir"
    file.write_text(PROGRAM)
    assert run("capture", f"{file}:train", "--batch", 16, "-o", first).code == 0
    for size, code, words in ((24, 0, "call by call"), (3, 1, "aten.sigmoid"), (5, 4, "of 5")):
        after = tmp_path / f"{size}.ir"
        assert run("opt", "-e", f"resize B = {size}", first, "-o", after, "-q").code == 0
        ran = run("check", first, after, "--program", f"{file}:train")
        assert ran.code == code
        assert words in ran.out + ran.err
        assert run("check", first, after).code == 0
