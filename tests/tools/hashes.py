"""Pins with hashes, from pip's report of what it would install.

``python -m tests.tools.hashes REPORT`` writes ``constraints-hashes.txt``; ``make hashes`` makes the
report, with the versions of ``constraints.txt``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "constraints-hashes.txt"
HEADING = (
    "# Versions of constraints.txt with hashes, for CPython 3.11 on x86-64 Linux and the\n"
    "# CPU build of torch. Written by make hashes; see docs/security.md.\n"
)


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield a requirement with a hash for each distribution of a report, in order of the names."""
    pins = []
    for entry in report["install"]:
        hashes = entry["download_info"].get("archive_info", {}).get("hashes", {})
        if "sha256" in hashes:  # irgraph itself, from a folder, has none
            metadata = entry["metadata"]
            pins.append((metadata["name"], metadata["version"], hashes["sha256"]))
    for name, version, digest in sorted(pins, key=lambda pin: pin[0].lower()):
        yield f"{name}=={version} --hash=sha256:{digest}"


if __name__ == "__main__":
    content = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    TARGET.write_text(HEADING + "\n".join(lines(content)) + "\n", encoding="utf-8")
