"""A PostgreSQL server of the tests' own: an unprivileged process on a socket in its own folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
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


class Server:
    """A server that can be killed and started again.

    Attributes:
        url: URL without a database's name, with braces for it.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="irgraph-pg-"))
        self.url = f"postgresql://team@/{{}}?host={self.folder}"
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            shutil.chown(self.folder, OWNER)
            self._user = {"user": OWNER, "extra_groups": []}
        words = ("-D", "data", "-U", "team", "-A", "trust", "-N", "--no-locale", "-E", "UTF8")
        quiet: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        initdb = [program("initdb"), *words]
        subprocess.run(initdb, check=True, cwd=self.folder, **quiet, **self._user)
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        options = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.folder),
            "fsync": "off",
        }
        settings = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        command = [program("postgres"), "-D", "data", *settings]
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                command, cwd=self.folder, stdout=log, stderr=log, **self._user
            )
        _wait(self.folder, process)
        return process

    def kill(self) -> None:
        """Kill the server as a crash of it would."""
        self._process.kill()
        self._process.wait(30)

    def start(self) -> None:
        """Start a killed server again; it may have to wait for its old processes to end."""
        end = time.monotonic() + 60
        while True:
            try:
                self._process = self._started()
                return
            except RuntimeError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)

    def close(self) -> None:
        """End the server, and remove its folder."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(30)
        shutil.rmtree(self.folder)


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
