"""Files without an end, and other devices, are refused by every reader."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from irgraph import files
from irgraph.diagnostics import IrgraphError
from irgraph.files import read_bytes, read_input

ZERO = "/dev/zero"
MODEL = 'model "m" { format = 1 }\n\ndevice @gpu0 "v100"\ninput %x : f32[8] in $x\n\n'
OP = "%y = aten.relu(%x) : f32[8] in $y\n"

COMMANDS = (
    f"predict {ZERO}", f"predict MODEL --device {ZERO}", f"predict MODEL --host {ZERO}",
    f"predict MODEL --weights {ZERO}", f"predict MODEL --indices {ZERO}",
    f"predict MODEL --fabric {ZERO}", "predict MODEL --indices zero.json",
    f"lower {ZERO}", f"analyze {ZERO}", f"verify {ZERO}",
    f"opt MODEL -s {ZERO}", f"fmt {ZERO}", f"db list --db {ZERO}", f"tune MODEL --space {ZERO}",
    f"replay {ZERO}", f"diff MODEL {ZERO}", f"overheads {ZERO} -o out", f"train gemm --data {ZERO}",
)  # fmt: skip

PROGRAM = """import resource, signal, sys
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
from irgraph.cli.main import main
for command in sys.argv[1].split("\\n"):
    signal.alarm(60)
    print("CODE", main(command.split()), command, flush=True)
"""


@pytest.mark.skipif(not Path(ZERO).exists(), reason="no such device")
def test_a_device_is_refused_by_every_command(tmp_path: Path) -> None:
    (tmp_path / "m.ir").write_text(MODEL + OP)
    (tmp_path / "zero.json").symlink_to(ZERO)
    commands = "\n".join(COMMANDS).replace("MODEL", "m.ir")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, commands],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("CODE")]
    assert len(lines) == len(COMMANDS), done.stderr
    assert all(line.split()[1] in ("2", "4") for line in lines), lines


def test_the_message_names_the_kind_of_file() -> None:
    with pytest.raises(IrgraphError, match="not a regular file, but a device"):
        read_bytes(ZERO)
    with pytest.raises(OSError, match="a device"):
        read_input(ZERO)


def test_a_pipe_without_an_end_stops_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_UNPACKED_BYTES", 1 << 21)
    reader, writer = os.pipe()
    feeder = subprocess.Popen(["cat", ZERO], stdout=writer, stderr=subprocess.DEVNULL)
    os.close(writer)
    try:
        with pytest.raises(IrgraphError, match="more than 2,097,152 bytes"):
            read_bytes(f"/dev/fd/{reader}")
    finally:
        os.close(reader)
        feeder.wait(10)
