"""Odd outputs, terminals and folders: pipes, ASCII, loops of links, folders named like packages."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from irgraph.cli.main import main
from tests.cli.fuzz.seeds import MODEL
from tests.installed import install

ROOT = Path(__file__).parents[2]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.ir"
    path.write_text(MODEL.replace("tower.weight", "tówer.weight"), encoding="utf-8")
    return path


def shell(command: str, folder: Path, **more: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **more}
    command = command.replace("irgraph ", f"{sys.executable} -m irgraph ")
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        check=False,
        capture_output=True,
        timeout=100,
    )


@pytest.mark.parametrize(
    "command",
    [
        "irgraph fmt model.ir -o /dev/stdout | cat",
        "irgraph fmt model.ir -o >(cat) | cat",
        "irgraph fmt model.ir -o /dev/fd/1",
        "irgraph fmt model.ir -o /dev/stdout >> log; cat log",
    ],
)
def test_output_goes_to_a_pipe(model: Path, command: str) -> None:
    (model.parent / "log").write_text("")
    ran = shell(command, model.parent)
    assert ran.stderr == b""
    assert ran.stdout == shell("irgraph fmt model.ir", model.parent).stdout
    assert "tówer.weight" in ran.stdout.decode()


def test_what_a_file_holds_stays_where_the_output_is_added(model: Path) -> None:
    ran = shell(
        "echo before > log; irgraph fmt model.ir -o /dev/stdout >> log; cat log", model.parent
    )
    assert ran.stdout.startswith(b"before\nmodel")


@pytest.mark.parametrize("command", ["fmt model.ir", "show model.ir", "predict model.ir"])
@pytest.mark.parametrize(
    "given",
    [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}, {"COLUMNS": "9" * 5000}],
)
def test_any_terminal_shows_any_name(model: Path, command: str, given: dict[str, str]) -> None:
    ran = shell(f"irgraph {command}", model.parent, **given)
    assert ran.returncode == 0, ran.stderr
    if command.startswith("fmt"):
        assert "tówer" in ran.stdout.decode("utf-8")


@pytest.mark.parametrize("name", ["costmodels", "passes", "grammars", "json"])
def test_folders_named_like_packages_do_not_matter(model: Path, name: str) -> None:
    folder = model.parent / name
    folder.mkdir()
    (folder / "__init__.py").write_text("raise SystemExit('imported')")
    ran = shell("irgraph predict model.ir", model.parent)
    assert ran.returncode == 0, ran.stderr


def test_the_order_of_rows_does_not_depend_on_the_process(model: Path) -> None:
    command = "irgraph diff model.ir model.ir --json"
    one, other = (shell(command, model.parent, PYTHONHASHSEED=seed).stdout for seed in "14")
    assert one == other


def test_what_is_installed_in_the_current_folder_does_not_run(model: Path) -> None:
    files = {"planted.py": "open('ran', 'w')"}
    points = {f"irgraph.{kind}": {"planted": "planted"} for kind in ("families", "front_ends")}
    install(model.parent, "planted", points, files)
    ran = shell("irgraph predict model.ir; irgraph lower model.ir", model.parent)
    assert ran.stdout
    assert not (model.parent / "ran").exists()


def test_a_loop_of_links_is_no_output(
    model: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for output in ("loop", "loop/model.ir"):
        assert main(["fmt", str(model), "-o", str(tmp_path / output)]) in (2, 4)
    assert "internal error" not in capsys.readouterr().err


@pytest.mark.parametrize("command", ["opt", "passes"])
def test_a_loop_of_links_is_no_folder_of_passes(
    model: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    loop = model.with_name("loop")
    loop.symlink_to(loop)
    given = ["-e", "remove any", str(model)] if command == "opt" else []
    assert main([command, *given, "--pass-path", str(loop / "loop")]) == 2
    assert "no folder" in capsys.readouterr().err


def test_an_interrupt_while_loading_is_one_line(tmp_path: Path) -> None:
    code = (  # a process in the background is started with interrupts ignored
        "import os, signal, time; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "os.kill(os.getpid(), signal.SIGINT); time.sleep(9)"
    )
    (tmp_path / "sitecustomize.py").write_text("")
    (tmp_path / "typer.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    ran = subprocess.run(
        [sys.executable, "-m", "irgraph", "devices"],
        env=environment,
        check=False,
        cwd=ROOT,
        capture_output=True,
        timeout=100,
    )
    assert (ran.returncode, ran.stderr) == (130, b"interrupted\n")
    assert signal.SIGINT  # the shell's own code for it is 130


@pytest.mark.parametrize(
    "arguments",
    [
        ["predict", "MODEL", "--dim", "B=" + "9" * 5000],
        ["lower", "MODEL", "--dim", "B=" + "9" * 5000],
        ["analyze", "MODEL", "--memory", "9" * 5000 + "GiB"],
        ["analyze", "MODEL", "--steps", "1:" + "9" * 5000],
        ["check", "MODEL", "MODEL", "--dim", "B=" + "9" * 5000],
    ],
)
def test_numbers_of_thousands_of_digits_are_refused(
    model: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.replace("MODEL", str(model)) for word in arguments]) in (2, 4)
    assert "internal error" not in capsys.readouterr().err


def test_memory_that_does_not_suffice_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: Path
) -> None:
    def none(_: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr("irgraph.files.read_bytes", none)
    assert main(["show", str(model)]) == 4
    assert capsys.readouterr().err == "irgraph: not enough memory for this input\n"
