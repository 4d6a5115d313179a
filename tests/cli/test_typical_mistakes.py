"""Typical mistakes on the command line, and what their messages suggest."""

from __future__ import annotations

from pathlib import Path

import pytest

from irgraph.cli.main import main
from tests.cli.fuzz.seeds import MODEL

PROGRAM = "import torch\n"

MISTAKES = [
    ("predict MODEL --device 3080", "did you mean 'RTX-3090'?"),
    ("predict MODEL --device v10", "did you mean 'V100-SXM2-16GB'?"),
    ("predict MODEL --device zzz", "`irgraph devices` lists them"),
    ("predict MODEL --host a100", "shipped tables: h100-torch-2.11"),
    ("predict MODEL --dim N=4", "its dimensions: "),
    ("predict MODEL --show op", "one of figures, causes, ops, modules"),
    ("predict PROGRAM", "this is a Python program, not model.ir"),
    ("predict nope.ir", "No such file"),
    ("advise", "missing argument 'MODEL'"),
    ("opt MODEL --pass fuse-embeding", "did you mean 'fuse-embedding'?"),
    ("opt MODEL --pass remove-ded", "did you mean 'remove-dead'?"),
    ("opt MODEL -e cast_many_aten.mm_to_bf17", "did you mean 'bf16'?"),
    ("opt MODEL -e fuze_many_aten.mm", "did you mean 'fuse'?"),
    ("predikt MODEL", "did you mean 'predict'?"),
]


@pytest.mark.parametrize(("command", "message"), MISTAKES)
def test_the_message_has_the_next_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, message: str
) -> None:
    files = {"MODEL": tmp_path / "model.ir", "PROGRAM": tmp_path / "train.py"}
    files["MODEL"].write_text(MODEL)
    files["PROGRAM"].write_text(PROGRAM)
    words = [str(files.get(word, word)) for word in command.split()]
    words = [word.replace("_", " ") if "many" in word else word for word in words]
    assert main(words) != 0
    assert message in capsys.readouterr().err


def test_a_program_is_captured_by_the_command_that_the_message_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\nfrom torch.nn import functional as F\n"
        "model = torch.nn.Linear(4, 2)\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for _ in range(3):\n"
        "    loss = model(torch.randn(8, 4)).sum()\n"
        "    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n"
    )
    assert main(["predict", str(path)]) != 0
    hint = capsys.readouterr().err.partition("hint: irgraph ")[2].split("\n")[0]
    words = [word.replace("model.ir", str(tmp_path / "model.ir")) for word in hint.split()]
    assert main(words) == 0
    assert main(["predict", str(tmp_path / "model.ir")]) == 0
