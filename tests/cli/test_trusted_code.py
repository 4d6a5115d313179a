"""docs/security.md names each command that runs code of others; so does the command's help.

Each of them runs it, so that no line of the page is for nothing, and no other module of irgraph
has a way to.
"""

from __future__ import annotations

import ast
import pickle
import re
from pathlib import Path

import pytest

from irgraph.cli.main import main
from tests.cli.test_place_command import TEXT as TABLES
from tests.installed import install, site

__all__ = ["site"]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
ROWS = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
COMMANDS = ("capture", "record", "quantize", "place", "lower", "sweep", "tune")

MODEL = 'model "m" { format = 1 }\n\ndevice @gpu0 "v100"\ninput %x : f32[8] in $x\n\n'
OP = "%y = aten.relu(%x) : f32[8] in $y\n"

WAYS = {
    "exec_module": {"irgraph/capture/live/target.py", "costmodels/measurements/programs.py"},
    "exec": {"irgraph/execute/program.py"},
    "eval": set(),
    "compile": {"irgraph/execute/program.py"},
    "__import__": set(),
    "system": set(),
    "Popen": set(),
    "loads": {"irgraph/anonymise/traces.py"},  # of json
}
"""Functions that run code of a text or a file, and the modules that may call them."""


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_says_what_runs(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "runs its code" in words
    assert f"`irgraph {command}" in PAGE.partition("| format |")[0]


def test_the_page_names_no_other_command() -> None:
    first_table = PAGE.partition("| format |")[0]
    rows = [line.split("|")[1] for line in first_table.splitlines() if line.startswith("| `")]
    assert set(re.findall(r"`irgraph (\w+)", " ".join(rows))) == set(COMMANDS)


def test_the_help_of_all_commands_names_plug_ins(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    assert "Installed packages that add to irgraph run their code" in " ".join(
        capsys.readouterr().out.split()
    )


def test_each_line_of_the_page_has_a_test() -> None:
    rows = [row for row in ROWS if row[-1].startswith("`tests/")]
    assert len(rows) > 15
    for row in rows:
        assert (ROOT / row[-1].strip("`")).is_file(), row[0]
    for heading in ("| runs code |", "| format |"):
        table = PAGE.partition(heading)[2].partition("\n\n")[0].splitlines()[2:]
        assert table
        assert all(line.rstrip(" |").endswith("`") for line in table)


@pytest.mark.parametrize(
    "command",
    [
        "record FILE:step --device cpu -o out --steps 1 --runs 1",
        "capture FILE:step --no-symbolic",
        "quantize m.ir --budget 1% --data FILE:step",
        "place tables.ir --platform dgx-1-optane --qps 1000 --latency 50ms --indices zipf:0.9"
        " --formats i8 --data FILE:step",
    ],
)
def test_programs_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.ir").write_text(MODEL + OP)
    (tmp_path / "tables.ir").write_text(TABLES.replace("1000000000", "1000"))
    code = "from pathlib import Path\nPath('ran').touch()\ndef step(*_):\n    return lambda: 0\n"
    (tmp_path / "evil.py").write_text(code)
    main(command.replace("FILE", "evil.py").split())
    assert (tmp_path / "ran").exists()


def test_files_of_tensors_are_not_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)

    class Payload:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (tmp_path / "ran",)

    (tmp_path / "m.ir").write_text(MODEL + OP)
    torch.save(Payload(), tmp_path / "saved.pt")
    (tmp_path / "pickled.pt").write_bytes(pickle.dumps(Payload()))
    for name in ("saved.pt", "pickled.pt"):
        assert main(["quantize", "m.ir", "--budget", "1%", "--data", name]) == 2
    assert not (tmp_path / "ran").exists()


def test_a_plug_in_runs(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = "from pathlib import Path\nPath('ran').touch()\nRULES = {}\nSOURCE = 'none'\n"
    points = {"irgraph.families": {"extra": "extra_family"}}
    install(site, "extra", points, {"extra_family.py": code})
    (tmp_path / "m.ir").write_text(MODEL + OP)
    main(["predict", "m.ir"])
    assert (tmp_path / "ran").exists()


def _calls(path: Path) -> set[str]:
    """Return the functions that run code which a module calls."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Name):
            names.add(function.id)
        elif isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            owner = function.value.id
            is_builtin = function.attr in ("compile", "eval", "loads")
            if not is_builtin or owner in ("pickle", "marshal", "cloudpickle"):
                names.add(function.attr)
        elif isinstance(function, ast.Attribute) and function.attr == "exec_module":
            names.add(function.attr)
    return names & WAYS.keys()


def test_no_other_module_runs_code() -> None:
    callers: dict[str, set[str]] = {name: set() for name in WAYS}
    for folder in ("irgraph", "costmodels", "grammars", "passes"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for name in _calls(path):
                callers[name].add(path.relative_to(ROOT).as_posix())
    assert callers == WAYS


def test_each_rule_of_the_page_names_its_test() -> None:
    rules = [part for part in PAGE.split("\n\n") if part.startswith("**")][1:]
    rules += [
        line for line in PAGE.splitlines() if line.startswith("| ") and "| test |" not in line
    ]
    for rule in rules:
        names = re.findall(r"`(tests/[\w/.]+)`", rule)
        assert names or "python -m tests." in rule, rule
        assert all((ROOT / name).exists() for name in names), names
