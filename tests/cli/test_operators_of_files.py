"""A model that names an operator with another effect than on tensors is refused at every door."""

from __future__ import annotations

from pathlib import Path

import pytest

from irgraph.cli.main import main
from irgraph.execute import compare, execute
from irgraph.execute.program import GraphProgram
from irgraph.ops.verify import verify
from irgraph.text import IrgraphError, parse

pytest.importorskip("torch")

CONTENT = b"what must stay as it is, longer than the eight numbers of the model"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_bytes(CONTENT)
    return path


def text(victim: Path) -> str:
    return (
        'model "m" { format = 1 }\n\ndevice @gpu0 "v100"\ninput %a : f32[8] in $a\n\n'
        f'%f = aten.from_file("{victim}", true, 8) : f32[8] in $f\n'
        "aten.fill_(%f!, 1.0)\n%c = aten.add(%a, %f) : f32[8] in $c\n"
    )


@pytest.mark.parametrize(
    "command",
    [
        "verify MODEL", "check MODEL MODEL", "measure MODEL --device cpu",
        "record MODEL --device cpu -o OUT", "quantize MODEL --budget 0.01", "predict MODEL",
        "opt MODEL --pass drop-dropout -o OUT", "diff MODEL MODEL",
    ],
)  # fmt: skip
def test_no_command_lets_a_model_write_a_file(
    command: str,
    victim: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "m.ir"
    model.write_text(text(victim))
    words = {"MODEL": str(model), "OUT": str(tmp_path / "out")}
    code = main([words.get(word, word) for word in command.split()])
    output = "".join(capfd.readouterr())
    assert code in (1, 2, 3, 4)
    assert "it opens files" in output
    assert victim.read_bytes() == CONTENT


def test_the_executor_itself_refuses(victim: Path) -> None:
    """Whoever runs a graph, without a check before: the list is the executor's."""
    graph = parse(text(victim))
    for run in (execute, lambda graph: compare(graph, graph), GraphProgram):
        with pytest.raises(IrgraphError, match="1 op is not executable") as caught:
            run(graph)
        assert "it opens files" in str(caught.value.diagnostics[0].notes[0].message)
    assert victim.read_bytes() == CONTENT


def test_verification_names_the_operator(victim: Path) -> None:
    (finding,) = verify(parse(text(victim)))
    assert (finding.rule, finding.message) == (
        "operators", "is not a function of tensors: it opens files",
    )  # fmt: skip
