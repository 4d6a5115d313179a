"""Reads of values that a meta tensor lacks: guards, loops and branches of a program."""

from __future__ import annotations

from pathlib import Path

import pytest

from irgraph.capture.common.result import Capture
from irgraph.capture.live import capture_file
from irgraph.text import IrgraphError

HEAD = """
import torch

net = torch.nn.Linear(256, 256).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for i in range(6):
    x = torch.randn(8, 256).cuda()
    loss = net(x).pow(2).mean()
"""

TAIL = """
    opt.zero_grad()
    loss.backward()
    opt.step()
"""

LINE = HEAD.count("\n") + 1
"""First line of the text between ``HEAD`` and ``TAIL``."""


def captured(folder: Path, text: str, *assume: str, rounds: int = 3) -> Capture:
    body = "\n".join(f"    {line}" for line in text.strip().splitlines())
    (folder / "train.py").write_text(f"{HEAD}{body}{TAIL}")
    return capture_file(f"{folder}/train.py", assume=assume, rounds=rounds)


def count(result: Capture, base: str) -> int:
    return sum(leaf.base == base for leaf in result.graph.leaves())


@pytest.mark.parametrize(
    ("test", "note"),
    [
        ("torch.isnan(loss)", "False (isnan of"),
        ("torch.isinf(loss).any().item()", "False (any of"),
        ("not torch.isfinite(loss)", "True (isfinite of"),
        ("loss != loss", "False (ne of"),
        ("torch.isnan(net.weight).sum() > 0", "False (gt of"),
        ("loss > 1e4", "False (gt of"),
        ("not loss < 1e4", "True (lt of"),
    ],
)
def test_guards_are_taken_as_not_met(tmp_path: Path, test: str, note: str) -> None:
    result = captured(tmp_path, f"if {test}:\n    continue")
    assert count(result, "mm") + count(result, "addmm") == 2
    assert any(f"train.py:{LINE}: taken as {note} an unknown value)" in n for n in result.notes)


def test_ops_by_element_follow_assumed_values(tmp_path: Path) -> None:
    """With ``alpha`` ignored, sigmoid(1 + 2) = 0.95 would be 0.88, and the branch taken."""
    value = "torch.add(torch.isfinite(loss).float(), 1, alpha=2).sigmoid()"
    result = captured(tmp_path, f"if {value} < 0.9:\n    y = x.tanh()")
    assert count(result, "tanh") == 0


def test_other_branches_are_taken_and_assertions_met(tmp_path: Path) -> None:
    result = captured(tmp_path, "assert not loss > 9\nif loss < 1:\n    y = x.tanh()")
    assert count(result, "tanh") == 1
    notes = [note for note in result.notes if note.startswith("train.py")]
    assert notes == [
        f"train.py:{LINE}: taken as False (gt of an unknown value)",
        f"train.py:{LINE + 1}: taken as True (lt of an unknown value)",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "e = net.weight.norm()\nwhile e > 1e-3:\n    e = e.tanh()",
        "e = net.weight.norm()\nwhile not e < 1e-3:\n    e = e.tanh()",
        "e = net.weight.norm()\nwhile e.item() > 1e-3:\n    e = e.tanh()",
        "e = net.weight.norm()\nwhile True:\n    e = e.tanh()\n    if e < 1e-3:\n        break",
        "e = net.weight.norm()\nfor n in range(9):\n    e = e.tanh()\n    if e < 1e-3: break",
    ],
)
def test_loops_end_after_some_rounds(tmp_path: Path, text: str) -> None:
    result = captured(tmp_path, text)
    assert count(result, "tanh") == 3
    assert any("rounds (--rounds), then as" in note for note in result.notes)


def test_an_assumption_decides_a_line(tmp_path: Path) -> None:
    text = "if loss < 1:\n    y = x.tanh()"
    result = captured(tmp_path, text, f"train.py:{LINE}=false")
    assert count(result, "tanh") == 0
    assert f"train.py:{LINE}: taken as False (lt of an unknown value)" in result.notes


def test_a_loop_that_no_test_bounds_is_refused_with_its_line(tmp_path: Path) -> None:
    text = "def more():\n    return bool(loss > 0)\nwhile more():\n    pass"
    with pytest.raises(IrgraphError, match="without end") as caught:
        captured(tmp_path, text)
    assert f"train.py:{LINE + 1}" in str(caught.value)


def test_a_branch_by_known_values_is_noted(tmp_path: Path) -> None:
    result = captured(tmp_path, "if torch.ones(4).cuda().all():\n    y = x.tanh()")
    assert count(result, "tanh") == 1
    text = f"train.py:{LINE}: taken as True, which the data of this step decide"
    assert text in result.notes


def test_results_that_the_host_leaves_out_are_unknown(tmp_path: Path) -> None:
    text = """
bag = torch.nn.EmbeddingBag(40, 8, sparse=True, mode="sum").cuda()
y = bag(torch.arange(12).view(4, 3).cuda())
"""
    assert count(captured(tmp_path, text), "_embedding_bag") == 1


def test_a_formatted_loss_is_a_number(tmp_path: Path) -> None:
    result = captured(tmp_path, "print(f'{loss:.4f}')")
    assert f"train.py:{LINE}: taken as 1 (mean of an unknown value)" in result.notes


@pytest.mark.parametrize("text", ["train.py", "train.py:x=true", "train.py:3=maybe", ":3=1"])
def test_an_assumption_that_cannot_be_read_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(IrgraphError, match="cannot read the assumption"):
        captured(tmp_path, "pass", text)


def test_counts_have_the_size_that_minlength_gives(tmp_path: Path) -> None:
    result = captured(tmp_path, "loads = torch.bincount(net(x).argmax(1) % 4, minlength=4)")
    (call,) = (leaf for leaf in result.graph.leaves() if leaf.base == "bincount")
    assert call.outputs[0].shape == (4,)
    assert any("below minlength" in note for note in result.notes)


def test_counts_without_a_size_are_refused_with_their_line(tmp_path: Path) -> None:
    with pytest.raises(IrgraphError, match=rf"train.py:{LINE}[^Z]*bincount"):
        captured(tmp_path, "loads = torch.bincount(net(x).argmax(1) % 4)")
