"""Pinned versions with known vulnerabilities: ``make audit ADVISORIES=FOLDER``.

The folder has advisories in OSV's format, one a JSON file, in any folders below it, as the public
database of PyPI's advisories has. Nothing is downloaded: without a folder the audit says so, and
fails.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.version import Version

ROOT = Path(__file__).parents[2]
PIN = re.compile(r"([\w.-]+)==([^\s;]+)")


def normalized(name: str) -> str:
    """Return a package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned_versions() -> dict[str, str]:
    """Return the versions of ``constraints.txt`` by normalised name."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    matches = map(PIN.match, text.splitlines())
    return {normalized(match[1]): match[2] for match in matches if match}


def findings(folder: Path, pins: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each advisory of a folder that applies to a pinned version.

    Raises ``FileNotFoundError`` if the folder has no advisory.
    """
    paths = sorted(folder.rglob("*.json"))
    if not paths:
        raise FileNotFoundError(f"no advisory in OSV's format (*.json) is in {folder}")
    for path in paths:
        advisory = json.loads(path.read_text(encoding="utf-8"))
        for affected in () if "withdrawn" in advisory else advisory.get("affected", ()):
            name = normalized(affected.get("package", {}).get("name", ""))
            if name in pins and is_affected(affected, pins[name]):
                summary = advisory.get("summary", "")
                yield f"{name} {pins[name]}: {advisory['id']} {summary}".rstrip()


def is_affected(affected: Mapping[str, Any], version: str) -> bool:
    """Return whether a version is among the versions or in a range of an advisory."""
    ranges = (r["events"] for r in affected.get("ranges", ()) if r["type"] == "ECOSYSTEM")
    return version in affected.get("versions", ()) or any(_covers(r, version) for r in ranges)


def _covers(events: Sequence[Mapping[str, str]], version: str) -> bool:
    current, covered = Version(version), False
    for event in events:
        if "introduced" in event:
            first = event["introduced"]
            covered = covered or first == "0" or current >= Version(first)
        elif "fixed" in event:
            covered = covered and current < Version(event["fixed"])
        elif "last_affected" in event:
            covered = covered and current <= Version(event["last_affected"])
    return covered


def main(arguments: Sequence[str]) -> int:
    """Print the findings; return 1 if there are any, 2 without a list."""
    if not arguments or not arguments[0]:
        sys.stderr.write(
            "no list of vulnerabilities is at hand: nothing was checked.\n"
            "make audit ADVISORIES=FOLDER checks constraints.txt against a folder of OSV files.\n"
        )
        return 2
    pins = pinned_versions()
    try:
        found = list(findings(Path(arguments[0]), pins))
    except FileNotFoundError as error:
        sys.stderr.write(f"{error}: nothing was checked.\n")
        return 2
    sys.stdout.writelines(f"{line}\n" for line in found)
    sys.stdout.write(f"{len(pins)} pinned packages, {len(found) or 'no'} known vulnerabilities\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
