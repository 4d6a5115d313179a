"""A PostgreSQL server of the tests' own: an unprivileged process on a socket in its own folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import NO_POSTGRES

OWNER = "nobody"
"""Who runs the server where the tests run as root, which PostgreSQL refuses."""


def program(name: str) -> str | None:
    """Return the path of one of PostgreSQL's programs; Debian keeps them out of ``PATH``."""
    debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(debian[-1]) if debian else None)


def missing() -> str:
    """Return why there is no server to test with, ``""`` where there is one."""
    return "" if program("initdb") and program("postgres") else f"{NO_POSTGRES} on this machine"


@contextmanager
def server() -> Iterator[str]:
    """Yield the URL, without a database's name, of a server that ends with the block."""
    folder = Path(tempfile.mkdtemp(prefix="irgraph-pg-"))
    who: dict[str, Any] = {}
    if os.geteuid() == 0:
        shutil.chown(folder, OWNER)
        who = {"user": OWNER, "extra_groups": []}
    initdb = [program("initdb"), "-D", "data", "-U", "team", "-A", "trust", "-N", "--no-locale"]
    quiet: dict[str, Any] = {"cwd": folder, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    subprocess.run([*initdb, "-E", "UTF8"], check=True, **quiet, **who)
    options = {"listen_addresses": "", "unix_socket_directories": str(folder), "fsync": "off"}
    settings = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
    with (folder / "log").open("wb") as log:
        command = [program("postgres"), "-D", "data", *settings]
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, **who)
    try:
        _wait(folder, process)
        yield f"postgresql://team@/{{}}?host={folder}"
    finally:
        process.send_signal(signal.SIGQUIT)
        process.wait(30)
        shutil.rmtree(folder)


def _wait(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until the server answers."""
    import psycopg

    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        try:
            psycopg.connect(host=str(folder), user="team", dbname="postgres").close()
            return
        except psycopg.OperationalError:
            time.sleep(0.05)
    raise RuntimeError((folder / "log").read_text(errors="replace"))
