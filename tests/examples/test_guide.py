"""The guide and the README's example run as written and print the figures they show."""

from __future__ import annotations

import contextlib
import io
import math
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from irgraph.cli.main import main

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guide.md"
BLOCK = re.compile(r"(?:^`([\w.-]+)`:\n\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FIGURE = re.compile(r"(?<![\w$%])[-+]?\d[\d,]*(?:\.\d+)?(?!\w)")
NEAR = 0.02
"""Share by which a figure may differ: another processor, a cost model that got better."""

REFUSED = "irgraph opt -e 'reorder aten.relu before first aten.cat'"
"""What a command that is refused begins with."""

Run = Callable[[str], str]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Return what runs a command line and returns all that it said."""

    def call(line: str) -> str:
        capfd.readouterr()
        code = main(shlex.split(line)[1:])
        said = "".join(capfd.readouterr())
        assert code == (1 if line.startswith(REFUSED) else 0), f"{line}\n{said}"
        return said

    return call


def printed(program: str) -> str:
    """Run a program and return what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(program, {})
    return out.getvalue()


def plain(text: str) -> str:
    """Return a text without frames of tables, and with single blanks."""
    return " ".join(re.sub(r"[│┃┡┩├┤━─]", " ", text).split())


def shows(said: str, line: str) -> bool:
    """Tell whether an output holds a line of the page, figures within ``NEAR``."""
    words = FIGURE.split(plain(line))
    pattern = f"({FIGURE.pattern})".join(map(re.escape, words))
    wanted = [float(number.replace(",", "")) for number in FIGURE.findall(plain(line))]
    for match in re.finditer(pattern, plain(said)):
        found = [float(number.replace(",", "")) for number in match.groups()]
        if all(math.isclose(a, b, rel_tol=NEAR) for a, b in zip(found, wanted, strict=True)):
            return True
    return False


@pytest.mark.slow
def test_the_guide_says_what_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.chdir(tmp_path)
    said, ran, compared = "", 0, 0
    for name, kind, inside in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if name:
            Path(name).write_text(inside, encoding="utf-8")
        elif kind == "sh":
            said = "".join(map(run, inside.splitlines()))
            ran += len(inside.splitlines())
        elif kind == "python":
            said = printed(inside)
        else:
            missing = [line for line in inside.splitlines() if not shows(said, line)]
            assert not missing, f"{missing}\nis not what was said:\n{said}"
            compared += len(inside.splitlines())
    assert (ran, compared) >= (9, 20)
    assert Path("h100.html").exists() and not Path("wrong.ir").exists()


@pytest.mark.parametrize(
    ("line", "found"),
    [("│ step │ 3.31 ms", True), ("step 3.30 ms", True), ("step 3.6 ms", False), ("stop 3", False)],
)
def test_lines_are_compared_by_words_and_figures(line: str, found: bool) -> None:
    assert shows("┃ a   ┃\n│ step   │ 3.309 ms │", line) == found


@pytest.mark.slow
def test_the_readme_prints_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.partition("## What does a step cost")[2].partition("\n## ")[0]
    monkeypatch.chdir(tmp_path)
    Path("examples").symlink_to(ROOT / "examples")
    commands = re.findall(r"^    (irgraph .*?)(?: +#.*)?$", section, re.MULTILINE)
    assert len(commands) == 4
    output = "".join(map(run, commands))
    assert Path("report.html").exists() and Path("fused.html").exists()
    shown = section.partition("```text\n")[2].partition("```")[0].replace("...", "\n")
    lines = [line for line in shown.splitlines() if line.strip()]
    assert len(lines) >= 6
    assert [line for line in lines if not shows(output, line)] == []
    before, after = re.search(r"takes ([\d.]+) ms and would take ([\d.]+) ms", section).groups()
    assert shows(output, f"before {before}") and shows(output, f"fuse-embedding {after}")
