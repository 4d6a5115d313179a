"""Commands are found by their files, listed without being imported, and loaded when they run."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from irgraph.backend import backend_name
from irgraph.cli import discovery
from irgraph.cli.discovery import PANELS, CommandEntry, entries
from tests.cli.conftest import Ran

COMMAND = '''"""``irgraph hello``: a greeting."""

PANEL = "evaluate"


def hello(name: str = "you") -> None:
    """Greet somebody; nothing else."""
    print(f"hello, {name}")
'''


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the file of one more command, in a package of its own."""
    folder = tmp_path / "toy_commands"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "_helper.py").touch()
    (folder / "hello.py").write_text(COMMAND)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(discovery, "PACKAGES", (*discovery.PACKAGES, "toy_commands"))
    entries.cache_clear()
    yield folder / "hello.py"
    entries.cache_clear()
    for name in [name for name in sys.modules if name.startswith("toy_commands")]:
        del sys.modules[name]


def test_a_file_is_all_that_a_new_command_needs(run: Callable[..., Ran], toy: Path) -> None:
    assert "hello" in entries()
    listed = run("--help").out.partition("Evaluate:")[2]
    assert "hello     Greet somebody; nothing else." in listed
    assert run("hello", "--name", "world").out == "hello, world\n"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('PANEL = "evaluate"', "", r'hello.py: a command needs PANEL = "...", one of models, tr'),
        ('"evaluate"', '"misc"', r'hello.py: a command needs PANEL = "...", one of models, tr'),
        ("def hello(", "def hullo(", r"hello.py: a command needs def hello\(...\) -> None with"),
    ],
    ids=["panel", "unknown panel", "function"],
)
def test_what_a_file_lacks_is_named(toy: Path, old: str, new: str, message: str) -> None:
    toy.write_text(COMMAND.replace(old, new))
    with pytest.raises(ValueError, match=message):
        entries()


def test_a_slip_in_a_command_tells_where_it_is(run: Callable[..., Ran], toy: Path) -> None:
    toy.write_text(COMMAND.replace("print(", "prnt("))
    assert re.search(r"NameError: .*'prnt'.* \(.*hello\.py, line 8\)", run("hello").err)


def test_the_help_lists_every_command_by_its_first_line(run: Callable[..., Ran]) -> None:
    text = " ".join(run("--help").out.split())
    for entry in entries().values():
        function = getattr(entry.load(), entry.module.rpartition(".")[2])
        assert entry.summary == inspect.getdoc(function).splitlines()[0]
        assert f" {entry.name} {entry.summary}" in text
    positions = [text.index(f"{panel.capitalize()}:") for panel in PANELS]
    assert positions == sorted(positions)


def test_the_help_imports_no_command() -> None:
    code = (
        "import sys; from irgraph.cli.main import main; main(['--help']); "
        f"named = ('rich', '{backend_name()}'); "
        "print([m for m in sys.modules if '.commands.' in m or m in named])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == f"['{backend_name()}']"


def test_every_command_shows_its_help(run: Callable[..., Ran]) -> None:
    for name, entry in entries().items():
        ran = run(name, "--help")
        assert ran.code == 0
        assert f"Usage: irgraph {name} " in ran.out
        assert entry.summary in " ".join(ran.out.split())


def test_every_command_is_on_a_page() -> None:
    root = Path(__file__).parents[2]
    text = "\n".join(page.read_text(encoding="utf-8") for page in (root / "docs").glob("*.md"))
    unknown = [name for name in entries() if f"irgraph {name}" not in text]
    assert not unknown, "a page of docs/ should show how it is called"


def test_the_page_of_commands_calls_commands_that_exist() -> None:
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")
    called = re.findall(r"(?:^    |; )irgraph ([a-z-]+)", page, re.MULTILINE)
    assert len(called) > 10 and set(called) <= entries().keys()


def test_entries_say_where_they_are() -> None:
    assert entries()["calibrate-profiler"] == CommandEntry(
        "calibrate-profiler",
        "traces",
        "Measure what the profiler adds to each event, for `irgraph overheads --profiler`.",
        "irgraph.cli.commands.calibrate_profiler",
    )
